"""Spanish phrases."""

from vmsst.tasks.sample.phrasebook import Phrasebook, by_number

BOOK = Phrasebook(
  subjects={
    "sister": "mi hermana",
    "brother": "mi hermano",
    "neighbours": "nuestros vecinos",
    "we": "",  # the verb says it
    "grandfather": "mi abuelo",
    "children": "los niños",
    "mother": "mi madre",
    "father": "mi padre",
    "friends": "mis amigos",
    "grandmother": "mi abuela",
    "uncle": "mi tío",
    "singer": "la famosa cantante",
    "aunt": "mi tía",
    "wife and I": "mi mujer y yo",
    "doctor": "el joven médico",
    "tourists": "los turistas",
    "teacher": "el viejo profesor",
    "pupil": "la alumna nueva",
    "workers": "los obreros",
    "taxi driver": "el taxista",
  },
  forms=("he", "they", "we", "he_past", "they_past", "we_past", "infinitive"),
  predicates={
    "buy flowers": "compra compran compramos compró compraron compramos comprar / flores",
    "buy red apples": (
      "compra compran compramos compró compraron compramos comprar / manzanas rojas"
    ),
    "sell old books": "vende venden vendemos vendió vendieron vendimos vender / libros viejos",
    "drink tea": "bebe beben bebemos bebió bebieron bebimos beber / té",
    "drink a cup of coffee": "toma toman tomamos tomó tomaron tomamos tomar / una taza de café",
    "eat ice cream": "come comen comemos comió comieron comimos comer / helado",
    "read an interesting book": "lee leen leemos leyó leyeron leímos leer / un libro interesante",
    "read the newspaper": "lee leen leemos leyó leyeron leímos leer / el periódico",
    "write a long letter": (
      "escribe escriben escribimos escribió escribieron escribimos escribir / una carta larga"
    ),
    "write short poems": (
      "escribe escriben escribimos escribió escribieron escribimos escribir / poemas cortos"
    ),
    "sing an old song": (
      "canta cantan cantamos cantó cantaron cantamos cantar / una canción antigua"
    ),
    "dance": "baila bailan bailamos bailó bailaron bailamos bailar",
    "play chess": "juega juegan jugamos jugó jugaron jugamos jugar / al ajedrez",
    "play the guitar": "toca tocan tocamos tocó tocaron tocamos tocar / la guitarra",
    "take photographs": "saca sacan sacamos sacó sacaron sacamos sacar / fotografías",
    "draw a horse": "dibuja dibujan dibujamos dibujó dibujaron dibujamos dibujar / un caballo",
    "wait for the bus": "espera esperan esperamos esperó esperaron esperamos esperar / el autobús",
    "wait for a guest": (
      "espera esperan esperamos esperó esperaron esperamos esperar / a un invitado"
    ),
    "look for a present": "busca buscan buscamos buscó buscaron buscamos buscar / un regalo",
    "talk about the weather": "habla hablan hablamos habló hablaron hablamos hablar / del tiempo",
    "talk with a journalist": (
      "habla hablan hablamos habló hablaron hablamos hablar / con un periodista"
    ),
    "meet an old friend": (
      "queda quedan quedamos quedó quedaron quedamos quedar / con un viejo amigo"
    ),
    "help an elderly woman": (
      "ayuda ayudan ayudamos ayudó ayudaron ayudamos ayudar / a una mujer mayor"
    ),
    "feed the birds": "da dan damos dio dieron dimos dar / de comer a los pájaros",
    "learn new words": (
      "aprende aprenden aprendemos aprendió aprendieron aprendimos aprender / palabras nuevas"
    ),
    "listen to music": (
      "escucha escuchan escuchamos escuchó escucharon escuchamos escuchar / música"
    ),
    "listen to the radio": (
      "escucha escuchan escuchamos escuchó escucharon escuchamos escuchar / la radio"
    ),
    "watch a film": "ve ven vemos vio vieron vimos ver / una película",
    "order a pizza": "pide piden pedimos pidió pidieron pedimos pedir / una pizza",
    "tell a funny story": (
      "cuenta cuentan contamos contó contaron contamos contar / una historia divertida"
    ),
    "repair old bicycles": (
      "repara reparan reparamos reparó repararon reparamos reparar / bicicletas viejas"
    ),
    "work on a new project": (
      "trabaja trabajan trabajamos trabajó trabajaron trabajamos trabajar / en un proyecto nuevo"
    ),
    "take a short break": "hace hacen hacemos hizo hicieron hicimos hacer / una breve pausa",
    "walk the dog": "pasea pasean paseamos paseó pasearon paseamos pasear / al perro",
    "pick up a parcel": (
      "recoge recogen recogemos recogió recogieron recogimos recoger / un paquete"
    ),
    "look at old photos": "mira miran miramos miró miraron miramos mirar / fotos antiguas",
  },
  places={
    "park": "en el parque",
    "market": "en el mercado",
    "station": "cerca de la estación",
    "school": "en la escuela",
    "library": "delante de la biblioteca",
    "old town": "en el casco antiguo",
    "river": "junto al río",
    "hotel": "en el hotel",
    "airport": "en el aeropuerto",
    "museum": "al lado del museo",
  },
  times={
    "every morning": "todas las mañanas",
    "every evening": "todas las noches",
    "on Sundays": "los domingos",
    "every day": "todos los días",
    "after lunch": "después del almuerzo",
    "in summer": "en verano",
    "every Friday": "todos los viernes",
    "on weekends": "los fines de semana",
    "yesterday": "ayer",
    "last week": "la semana pasada",
    "last night": "anoche",
    "last Saturday": "el sábado pasado",
    "last month": "el mes pasado",
    "three days ago": "hace tres días",
    "last summer": "el verano pasado",
    "an hour ago": "hace una hora",
    "tomorrow": "mañana",
    "tonight": "esta noche",
    "next week": "la semana que viene",
    "today": "hoy",
    "next Saturday": "el próximo sábado",
    "next month": "el mes que viene",
    "tomorrow morning": "mañana por la mañana",
    "this weekend": "este fin de semana",
  },
  verbs={
    "present": by_number("{he}", "{they}", "{we}"),
    "past": by_number("{he_past}", "{they_past}", "{we_past}"),
    "want": by_number("quiere {infinitive}", "quieren {infinitive}", "queremos {infinitive}"),
  },
  order=dict.fromkeys(("present", "past", "want"), "{subject} {verb} {object} {place} {time}"),
)
