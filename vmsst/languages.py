"""The table of languages: their rows in language embeddings and their codes in corpora.

Corpora and benchmarks name the same language differently: Persian is fa in OPUS, pes in Tatoeba,
fas in NTREX and pes_Arab in FLORES-200. `language` accepts all of these, in any case and with '-'
or '_', and returns one `Language`, whose `index` is the row of a language embedding table.

Definition of a language:

* A language has one script. If a set of codes separates scripts, each script is a separate language
  (zho_Hans and zho_Hant, srp_Cyrl and srp_Latn). A code without a script is the first of them in
  the table, even if a corpus mixes scripts: zh, zho and cmn are simplified Chinese, sr and srp are
  Serbian in Cyrillic.
* Regions share a language: pt_BR is Portuguese, en-GB is English. Only for Chinese does a region
  select a script (zh_TW, zh_HK are traditional), and fa_AF is Dari, which has a code.
* A macrolanguage code is the member that corpora use it for: ara is Standard Arabic (arb), fas is
  Iranian Persian (pes), kur is Northern Kurdish (kmr), nor is Bokmål (nob). Serbo-Croatian (sh) and
  Berber (ber) have no such member and are separate languages.
* Two codes are two languages if a corpus has both, even if ISO 639-3 has merged them since (dtp and
  kzj, apc and ajp). Filipino (fil) is Tagalog: no supported corpus has both.

`family` is a group of the size of a WALS genus: obviously related, some 2,000 to 4,000 years deep
(Germanic and Slavic rather than Indo-European; Turkic and Dravidian are whole families of that
depth). Three exceptions serve comparisons of clusterings: Latin counts as Romance, all creoles are
"Creole", and planned languages are "Constructed". `branch` divides the Slavic, Germanic and Celtic
languages further, because their branches are undisputed and papers compare them.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Iterable

from vmsst.errors import InputError


@dataclasses.dataclass(frozen=True)
class Language:
  """A written language and its codes.

  Attributes:
    index: Row in language embedding tables, from 1 (0 is an unknown language); never reused.
    name: English name, unique.
    iso639_3: Three-letter code, shared by the scripts of a language. Three are not in ISO 639-3
      today: ber (a collective code of ISO 639-2), and ajp and kzj, which are retired.
    iso639_1: Two-letter code, or None.
    script: ISO 15924 code of the script of most of its text.
    family: Group of related languages; see the module docstring.
    branch: Part of the family, such as "South Slavic"; the family itself if it is not divided.
    tatoeba: Code in LASER's Tatoeba v1 test sets (`tatoeba.XXX-eng.XXX`), or None.
    flores: Codes in FLORES-200 and SIB-200.
    ntrex: Code in NTREX-128, or None.
    other: Further codes; those without a script also work with one.
  """

  index: int
  name: str
  iso639_3: str
  iso639_1: str | None
  script: str
  family: str
  branch: str
  tatoeba: str | None
  flores: tuple[str, ...]
  ntrex: str | None
  other: tuple[str, ...] = ()


# Append only, with the next index: checkpoints hold embeddings by index. The first 283 are sorted
# by code; the default script of a code comes first. Columns: index, ISO 639-3, ISO 639-1, script,
# Tatoeba, FLORES-200, NTREX, family and, after a slash, branch, name, and after a bar other codes.
_TABLE = """\
  1 aar aa Latn -   -        -        Cushitic          Afar
  2 abk ab Cyrl -   -        -        Abkhaz-Adyge      Abkhazian
  3 ace -  Latn -   ace_Latn -        Malayo-Sumbawan   Acehnese
  4 ace -  Arab -   ace_Arab -        Malayo-Sumbawan   Acehnese (Arabic)
  5 acm -  Arab -   acm_Arab -        Semitic           Mesopotamian Arabic
  6 acq -  Arab -   acq_Arab -        Semitic           Ta'izzi-Adeni Arabic
  7 aeb -  Arab -   aeb_Arab -        Semitic           Tunisian Arabic
  8 afr af Latn afr afr_Latn afr      Germanic/West     Afrikaans
  9 ajp -  Arab -   ajp_Arab -        Semitic           South Levantine Arabic
 10 aka ak Latn -   aka_Latn -        Kwa               Akan
 11 als sq Latn sqi als_Latn sqi      Albanian          Albanian | alb
 12 amh am Ethi amh amh_Ethi amh      Semitic           Amharic
 13 ang -  Latn ang -        -        Germanic/West     Old English
 14 apc -  Arab -   apc_Arab -        Semitic           North Levantine Arabic
 15 arb ar Arab ara arb_Arab arb      Semitic           Arabic
 16 arb ar Latn -   arb_Latn -        Semitic           Arabic (romanized) | ara
 17 arg an Latn -   -        -        Romance           Aragonese
 18 arq -  Arab arq -        -        Semitic           Algerian Arabic
 19 ars -  Arab -   ars_Arab -        Semitic           Najdi Arabic
 20 ary -  Arab -   ary_Arab -        Semitic           Moroccan Arabic
 21 arz -  Arab arz arz_Arab -        Semitic           Egyptian Arabic
 22 asm as Beng -   asm_Beng -        Indo-Aryan        Assamese
 23 ast -  Latn ast ast_Latn -        Romance           Asturian
 24 ava av Cyrl -   -        -        Nakh-Daghestanian Avar
 25 ave ae Avst -   -        -        Iranian           Avestan
 26 awa -  Deva awa awa_Deva -        Indo-Aryan        Awadhi
 27 ayr ay Latn -   ayr_Latn -        Aymaran           Aymara | aym
 28 azb -  Arab -   azb_Arab -        Turkic            South Azerbaijani | az_IR
 29 azj az Latn aze azj_Latn aze-Latn Turkic            Azerbaijani
 30 bak ba Cyrl -   bak_Cyrl bak      Turkic            Bashkir
 31 bam bm Latn -   bam_Latn -        Mande             Bambara
 32 ban -  Latn -   ban_Latn -        Malayo-Sumbawan   Balinese
 33 bbc -  Latn -   -        -        Batak             Toba Batak
 34 bel be Cyrl bel bel_Cyrl bel      Slavic/East       Belarusian | be_tarask
 35 bem -  Latn -   bem_Latn bem      Bantu             Bemba
 36 ben bn Beng ben ben_Beng ben      Indo-Aryan        Bengali
 37 ber -  Latn ber -        -        Berber            Berber
 38 bho -  Deva -   bho_Deva -        Indo-Aryan        Bhojpuri
 39 bis bi Latn -   -        -        Creole            Bislama
 40 bjn -  Latn -   bjn_Latn -        Malayo-Sumbawan   Banjar | banjarese
 41 bjn -  Arab -   bjn_Arab -        Malayo-Sumbawan   Banjar (Arabic)
 42 bod bo Tibt -   bod_Tibt bod      Bodic             Tibetan | tib
 43 bos bs Latn bos bos_Latn bos      Slavic/South      Bosnian
 44 bre br Latn bre -        -        Celtic/Brittonic  Breton
 45 bug -  Latn -   bug_Latn -        Sulawesi          Buginese
 46 bul bg Cyrl bul bul_Cyrl bul      Slavic/South      Bulgarian
 47 cat ca Latn cat cat_Latn cat      Romance           Catalan | ca_valencia
 48 cbk -  Latn cbk -        -        Creole            Chavacano | cbk_zam
 49 ceb -  Latn ceb ceb_Latn -        Philippine        Cebuano
 50 ces cs Latn ces ces_Latn ces      Slavic/West       Czech | cze
 51 cha ch Latn cha -        -        Chamorro          Chamorro
 52 che ce Cyrl -   -        -        Nakh-Daghestanian Chechen
 53 chu cu Cyrl -   -        -        Slavic/South      Old Church Slavonic
 54 chv cv Cyrl -   -        -        Turkic            Chuvash
 55 cjk -  Latn -   cjk_Latn -        Bantu             Chokwe
 56 ckb -  Arab -   ckb_Arab ckb-Arab Iranian           Central Kurdish
 57 cmn zh Hans cmn zho_Hans zho-CN   Sinitic           Chinese (simplified) | zho chi zho_simpl
 58 cmn zh Hant -   zho_Hant zho-TW   Sinitic           Chinese (traditional) | zho chi zho_trad
 59 cor kw Latn cor -        -        Celtic/Brittonic  Cornish
 60 cos co Latn -   -        -        Romance           Corsican
 61 cre cr Cans -   -        -        Algonquian        Cree
 62 crh -  Latn -   crh_Latn -        Turkic            Crimean Tatar
 63 csb -  Latn csb -        -        Slavic/West       Kashubian
 64 cym cy Latn cym cym_Latn cym      Celtic/Brittonic  Welsh | wel
 65 dan da Latn dan dan_Latn dan      Germanic/North    Danish
 66 deu de Latn deu deu_Latn deu      Germanic/West     German | ger
 67 dik -  Latn -   dik_Latn -        Nilotic           Southwestern Dinka | din
 68 div dv Thaa -   -        div      Indo-Aryan        Divehi
 69 dsb -  Latn dsb -        -        Slavic/West       Lower Sorbian
 70 dtp -  Latn dtp -        -        Bornean           Kadazan Dusun
 71 dyu -  Latn -   dyu_Latn -        Mande             Dyula
 72 dzo dz Tibt -   dzo_Tibt dzo      Bodic             Dzongkha
 73 ell el Grek ell ell_Grek ell      Greek             Greek | gre
 74 eng en Latn eng eng_Latn eng      Germanic/West     English
 75 epo eo Latn epo epo_Latn -        Constructed       Esperanto
 76 est et Latn est est_Latn est      Finnic            Estonian | ekk
 77 eus eu Latn eus eus_Latn eus      Basque            Basque | baq
 78 ewe ee Latn -   ewe_Latn ewe      Kwa               Ewe
 79 fao fo Latn fao fao_Latn fao      Germanic/North    Faroese
 80 fij fj Latn -   fij_Latn fij      Oceanic           Fijian
 81 fin fi Latn fin fin_Latn fin      Finnic            Finnish
 82 fon -  Latn -   fon_Latn -        Kwa               Fon
 83 fra fr Latn fra fra_Latn fra      Romance           French | fre
 84 fry fy Latn fry -        -        Germanic/West     West Frisian
 85 fuc -  Latn -   -        fuc      Atlantic          Pulaar
 86 fur -  Latn -   fur_Latn -        Romance           Friulian
 87 fuv ff Latn -   fuv_Latn -        Atlantic          Nigerian Fulfulde | ful
 88 gaz om Latn -   gaz_Latn orm      Cushitic          Oromo
 89 gla gd Latn gla gla_Latn -        Celtic/Goidelic   Scottish Gaelic
 90 gle ga Latn gle gle_Latn gle      Celtic/Goidelic   Irish
 91 glg gl Latn glg glg_Latn glg      Romance           Galician
 92 glv gv Latn -   -        -        Celtic/Goidelic   Manx
 93 grn gn Latn -   grn_Latn -        Tupian            Guarani | gug
 94 gsw -  Latn gsw -        -        Germanic/West     Swiss German
 95 guj gu Gujr -   guj_Gujr guj      Indo-Aryan        Gujarati
 96 hat ht Latn -   hat_Latn -        Creole            Haitian Creole
 97 hau ha Latn -   hau_Latn hau      Chadic            Hausa
 98 haw -  Latn -   -        -        Oceanic           Hawaiian
 99 hbs sh Latn -   -        -        Slavic/South      Serbo-Croatian
100 heb he Hebr heb heb_Hebr heb      Semitic           Hebrew | iw
101 her hz Latn -   -        -        Bantu             Herero
102 hin hi Deva hin hin_Deva hin      Indo-Aryan        Hindi
103 hmn -  Latn -   -        hmn      Hmong-Mien        Hmong
104 hmo ho Latn -   -        -        Oceanic           Hiri Motu
105 hne -  Deva -   hne_Deva -        Indo-Aryan        Chhattisgarhi
106 hrv hr Latn hrv hrv_Latn hrv      Slavic/South      Croatian
107 hsb -  Latn hsb -        -        Slavic/West       Upper Sorbian
108 hun hu Latn hun hun_Latn hun      Ugric             Hungarian
109 hye hy Armn hye hye_Armn hye      Armenian          Armenian | arm
110 ibo ig Latn -   ibo_Latn ibo      Volta-Niger       Igbo
111 ido io Latn ido -        -        Constructed       Ido
112 iii ii Yiii -   -        -        Burmese-Lolo      Nuosu
113 iku iu Cans -   -        -        Eskimo            Inuktitut
114 ile ie Latn ile -        -        Constructed       Interlingue
115 ilo -  Latn -   ilo_Latn -        Philippine        Ilocano
116 ina ia Latn ina -        -        Constructed       Interlingua
117 ind id Latn ind ind_Latn ind      Malayo-Sumbawan   Indonesian | in
118 ipk ik Latn -   -        -        Eskimo            Inupiaq
119 isl is Latn isl isl_Latn isl      Germanic/North    Icelandic | ice
120 ita it Latn ita ita_Latn ita      Romance           Italian
121 jav jv Latn jav jav_Latn -        Javanese          Javanese | jw
122 jpn ja Jpan jpn jpn_Jpan jpn      Japonic           Japanese
123 kab -  Latn kab kab_Latn -        Berber            Kabyle
124 kac -  Latn -   kac_Latn -        Brahmaputran      Jingpho
125 kal kl Latn -   -        -        Eskimo            Kalaallisut
126 kam -  Latn -   kam_Latn -        Bantu             Kamba
127 kan kn Knda -   kan_Knda kan      Dravidian         Kannada
128 kas ks Arab -   kas_Arab -        Indo-Aryan        Kashmiri
129 kas ks Deva -   kas_Deva -        Indo-Aryan        Kashmiri (Devanagari)
130 kat ka Geor kat kat_Geor kat      Kartvelian        Georgian | geo
131 kaz kk Cyrl kaz kaz_Cyrl kaz      Turkic            Kazakh
132 kbp -  Latn -   kbp_Latn -        Gur               Kabiyè
133 kea -  Latn -   kea_Latn -        Creole            Kabuverdianu
134 khk mn Cyrl mon khk_Cyrl mon      Mongolic          Mongolian
135 khm km Khmr khm khm_Khmr khm      Khmer             Khmer
136 kik ki Latn -   kik_Latn -        Bantu             Kikuyu
137 kin rw Latn -   kin_Latn kin      Bantu             Kinyarwanda
138 kir ky Cyrl -   kir_Cyrl kir      Turkic            Kyrgyz
139 kmb -  Latn -   kmb_Latn -        Bantu             Kimbundu
140 kmr ku Latn kur kmr_Latn kmr      Iranian           Northern Kurdish
141 knc kr Latn -   knc_Latn -        Saharan           Central Kanuri | kau
142 knc kr Arab -   knc_Arab -        Saharan           Central Kanuri (Arabic) | kau
143 kom kv Cyrl -   -        -        Permic            Komi | kpv
144 kon kg Latn -   kon_Latn -        Bantu             Kikongo
145 kor ko Hang kor kor_Hang kor      Koreanic          Korean | kor_Kore ko_Kore
146 kua kj Latn -   -        -        Bantu             Kwanyama
147 kzj -  Latn kzj -        -        Bornean           Coastal Kadazan
148 lao lo Laoo -   lao_Laoo lao      Kam-Tai           Lao
149 lat la Latn lat -        -        Romance           Latin
150 lfn -  Latn lfn -        -        Constructed       Lingua Franca Nova
151 lij -  Latn -   lij_Latn -        Romance           Ligurian
152 lim li Latn -   lim_Latn -        Germanic/West     Limburgish
153 lin ln Latn -   lin_Latn -        Bantu             Lingala
154 lit lt Latn lit lit_Latn lit      Baltic            Lithuanian
155 lmo -  Latn -   lmo_Latn -        Romance           Lombard
156 ltg -  Latn -   ltg_Latn -        Baltic            Latgalian
157 ltz lb Latn -   ltz_Latn ltz      Germanic/West     Luxembourgish
158 lua -  Latn -   lua_Latn -        Bantu             Luba-Kasai
159 lub lu Latn -   -        -        Bantu             Luba-Katanga
160 lug lg Latn -   lug_Latn -        Bantu             Ganda
161 luo -  Latn -   luo_Latn -        Nilotic           Luo
162 lus -  Latn -   lus_Latn -        Kuki-Chin         Mizo
163 lvs lv Latn lvs lvs_Latn lav      Baltic            Latvian
164 mad -  Latn -   -        -        Malayo-Sumbawan   Madurese
165 mag -  Deva -   mag_Deva -        Indo-Aryan        Magahi
166 mah mh Latn -   -        -        Oceanic           Marshallese
167 mai -  Deva -   mai_Deva -        Indo-Aryan        Maithili
168 mal ml Mlym mal mal_Mlym mal      Dravidian         Malayalam
169 mar mr Deva mar mar_Deva mar      Indo-Aryan        Marathi
170 max -  Latn max -        -        Malayo-Sumbawan   North Moluccan Malay
171 mey -  Arab -   -        mey      Semitic           Hassaniyya
172 mhr -  Cyrl mhr -        -        Mari              Meadow Mari | chm
173 min -  Latn -   min_Latn -        Malayo-Sumbawan   Minangkabau
174 min -  Arab -   min_Arab -        Malayo-Sumbawan   Minangkabau (Arabic)
175 mkd mk Cyrl mkd mkd_Cyrl mkd      Slavic/South      Macedonian | mac
176 mlt mt Latn -   mlt_Latn mlt      Semitic           Maltese
177 mni -  Beng -   mni_Beng -        Kuki-Chin         Meitei
178 mos -  Latn -   mos_Latn -        Gur               Mossi
179 mri mi Latn -   mri_Latn mri      Oceanic           Maori | mao
180 mya my Mymr -   mya_Mymr mya      Burmese-Lolo      Burmese | bur
181 nau na Latn -   -        -        Oceanic           Nauruan
182 nav nv Latn -   -        -        Athabaskan        Navajo
183 nbl nr Latn -   -        -        Bantu             South Ndebele
184 nde nd Latn -   -        nde      Bantu             North Ndebele
185 ndo ng Latn -   -        -        Bantu             Ndonga
186 nds -  Latn nds -        -        Germanic/West     Low German | nds_nl
187 nij -  Latn -   -        -        Barito            Ngaju
188 nld nl Latn nld nld_Latn nld      Germanic/West     Dutch | dut
189 nno nn Latn nno nno_Latn nno      Germanic/North    Norwegian Nynorsk
190 nob nb Latn nob nob_Latn nob      Germanic/North    Norwegian Bokmål | nor no no_nb
191 nov -  Latn nov -        -        Constructed       Novial
192 npi ne Deva -   npi_Deva nep      Indo-Aryan        Nepali
193 nqo -  Nkoo -   nqo_Nkoo -        Mande             N'Ko
194 nso -  Latn -   nso_Latn nso      Bantu             Northern Sotho
195 nus -  Latn -   nus_Latn -        Nilotic           Nuer
196 nya ny Latn -   nya_Latn nya      Bantu             Nyanja
197 oci oc Latn oci oci_Latn -        Romance           Occitan
198 oji oj Cans -   -        -        Algonquian        Ojibwe
199 orv -  Cyrl orv -        -        Slavic/East       Old East Slavic
200 ory or Orya -   ory_Orya -        Indo-Aryan        Odia | ori
201 oss os Cyrl -   -        -        Iranian           Ossetian
202 pag -  Latn -   pag_Latn -        Philippine        Pangasinan
203 pam -  Latn pam -        -        Philippine        Kapampangan
204 pan pa Guru -   pan_Guru pan      Indo-Aryan        Punjabi
205 pap -  Latn -   pap_Latn -        Creole            Papiamento
206 pbt ps Arab -   pbt_Arab pus      Iranian           Pashto
207 pes fa Arab pes pes_Arab fas      Iranian           Persian | per
208 pli pi Deva -   -        -        Indo-Aryan        Pali
209 plt mg Latn -   plt_Latn mlg      Barito            Malagasy
210 pms -  Latn pms -        -        Romance           Piedmontese
211 pol pl Latn pol pol_Latn pol      Slavic/West       Polish
212 por pt Latn por por_Latn por      Romance           Portuguese
213 prs -  Arab -   prs_Arab prs      Iranian           Dari | fa_AF
214 quy qu Latn -   quy_Latn -        Quechuan          Quechua | que
215 roh rm Latn -   -        -        Romance           Romansh | rm_sursilv rm_vallader
216 ron ro Latn ron ron_Latn ron      Romance           Romanian | rum mol mo
217 run rn Latn -   run_Latn -        Bantu             Rundi
218 rus ru Cyrl rus rus_Cyrl rus      Slavic/East       Russian
219 sag sg Latn -   sag_Latn -        Ubangi            Sango
220 san sa Deva -   san_Deva -        Indo-Aryan        Sanskrit
221 sat -  Olck -   sat_Olck,sat_Beng -        Munda             Santali
222 scn -  Latn -   scn_Latn -        Romance           Sicilian
223 shi -  Arab -   -        shi      Berber            Tachelhit
224 shn -  Mymr -   shn_Mymr -        Kam-Tai           Shan
225 sin si Sinh -   sin_Sinh sin      Indo-Aryan        Sinhala
226 slk sk Latn slk slk_Latn slk      Slavic/West       Slovak | slo
227 slv sl Latn slv slv_Latn slv      Slavic/South      Slovenian
228 sme se Latn -   -        -        Saami             Northern Sami
229 smo sm Latn -   smo_Latn smo      Oceanic           Samoan
230 sna sn Latn -   sna_Latn sna-Latn Bantu             Shona
231 snd sd Arab -   snd_Arab snd-Arab Indo-Aryan        Sindhi
232 som so Latn -   som_Latn som      Cushitic          Somali
233 sot st Latn -   sot_Latn -        Bantu             Southern Sotho
234 spa es Latn spa spa_Latn spa      Romance           Spanish
235 srd sc Latn -   srd_Latn -        Romance           Sardinian
236 srp sr Cyrl srp srp_Cyrl srp-Cyrl Slavic/South      Serbian
237 srp sr Latn -   -        srp-Latn Slavic/South      Serbian (Latin)
238 ssw ss Latn -   ssw_Latn ssw      Bantu             Swati
239 sun su Latn -   sun_Latn -        Malayo-Sumbawan   Sundanese
240 swe sv Latn swe swe_Latn swe      Germanic/North    Swedish
241 swg -  Latn swg -        -        Germanic/West     Swabian
242 swh sw Latn swh swh_Latn swa      Bantu             Swahili
243 szl -  Latn -   szl_Latn -        Slavic/West       Silesian
244 tah ty Latn -   -        tah      Oceanic           Tahitian
245 tam ta Taml tam tam_Taml tam      Dravidian         Tamil
246 taq -  Latn -   taq_Latn -        Berber            Tamasheq
247 taq -  Tfng -   taq_Tfng -        Berber            Tamasheq (Tifinagh)
248 tat tt Cyrl tat tat_Cyrl tat      Turkic            Tatar
249 tel te Telu tel tel_Telu tel      Dravidian         Telugu
250 tgk tg Cyrl -   tgk_Cyrl tgk-Cyrl Iranian           Tajik
251 tgl tl Latn tgl tgl_Latn fil      Philippine        Tagalog
252 tha th Thai tha tha_Thai tha      Kam-Tai           Thai
253 tir ti Ethi -   tir_Ethi tir      Semitic           Tigrinya
254 ton to Latn -   -        ton      Oceanic           Tongan
255 tpi -  Latn -   tpi_Latn -        Creole            Tok Pisin
256 tsn tn Latn -   tsn_Latn tsn      Bantu             Tswana
257 tso ts Latn -   tso_Latn -        Bantu             Tsonga
258 tuk tk Latn tuk tuk_Latn tuk      Turkic            Turkmen
259 tum -  Latn -   tum_Latn -        Bantu             Tumbuka
260 tur tr Latn tur tur_Latn tur      Turkic            Turkish
261 twi tw Latn -   twi_Latn -        Kwa               Twi
262 tzl -  Latn tzl -        -        Constructed       Talossan
263 tzm -  Tfng -   tzm_Tfng -        Berber            Central Atlas Tamazight
264 uig ug Arab uig uig_Arab uig      Turkic            Uyghur
265 ukr uk Cyrl ukr ukr_Cyrl ukr      Slavic/East       Ukrainian
266 umb -  Latn -   umb_Latn -        Bantu             Umbundu
267 urd ur Arab urd urd_Arab urd      Indo-Aryan        Urdu
268 uzn uz Latn uzb uzn_Latn uzb      Turkic            Uzbek
269 vec -  Latn -   vec_Latn -        Romance           Venetian
270 ven ve Latn -   -        ven      Bantu             Venda
271 vie vi Latn vie vie_Latn vie      Vietic            Vietnamese
272 vol vo Latn -   -        -        Constructed       Volapük
273 war -  Latn war war_Latn -        Philippine        Waray
274 wln wa Latn -   -        -        Romance           Walloon
275 wol wo Latn -   wol_Latn wol      Atlantic          Wolof
276 wuu -  Hans wuu -        -        Sinitic           Wu Chinese
277 xho xh Latn xho xho_Latn xho      Bantu             Xhosa
278 ydd yi Hebr yid ydd_Hebr -        Germanic/West     Yiddish | ji
279 yor yo Latn -   yor_Latn yor      Volta-Niger       Yoruba
280 yue -  Hant yue yue_Hant yue      Sinitic           Cantonese | zh_yue
281 zha za Latn -   -        -        Kam-Tai           Zhuang
282 zsm ms Latn zsm zsm_Latn msa      Malayo-Sumbawan   Malay | may
283 zul zu Latn -   zul_Latn zul      Bantu             Zulu
"""

# Regions in codes of corpora and locales that do not change the written language.
_REGIONS = {
  "afr": "ZA",
  "als": "AL XK",
  "amh": "ET",
  "arb": "AE BH DZ EG IQ JO KW LB LY MA OM QA SA SD SY TN YE",
  "asm": "IN",
  "azj": "AZ",
  "bel": "BY",
  "ben": "BD IN",
  "bos": "BA",
  "bul": "BG",
  "cat": "AD ES",
  "ces": "CZ",
  "cmn_Hans": "CHS CN SG",
  "cmn_Hant": "CHT HK MO TW",
  "cym": "GB",
  "dan": "DK",
  "deu": "AT BE CH DE LI LU",
  "ell": "CY GR",
  "eng": "AU CA GB HK IE IN KE NG NZ PH SG US ZA",
  "est": "EE",
  "eus": "ES",
  "fin": "FI",
  "fra": "BE CA CH FR LU",
  "fry": "NL",
  "gla": "GB",
  "gle": "IE",
  "glg": "ES",
  "gsw": "BE CH ZH",
  "guj": "IN",
  "heb": "IL",
  "hin": "IN",
  "hrv": "BA HR",
  "hun": "HU",
  "hye": "AM",
  "ind": "ID",
  "isl": "IS",
  "ita": "CH IT",
  "jav": "ID",
  "jpn": "JP",
  "kan": "IN",
  "kat": "GE",
  "kaz": "KZ",
  "khk": "MN",
  "khm": "KH",
  "kin": "RW",
  "kir": "KG",
  "kor": "KP KR",
  "lao": "LA",
  "lit": "LT",
  "ltz": "LU",
  "lvs": "LV",
  "mal": "IN",
  "mar": "IN",
  "mkd": "MK",
  "mlt": "MT",
  "mya": "MM",
  "nld": "BE NL",
  "nno": "NO",
  "nob": "NO",
  "npi": "NP",
  "ory": "IN",
  "pan": "IN",
  "pbt": "AF",
  "pes": "IR",
  "pol": "PL",
  "por": "AO BR MZ PT",
  "prs": "AF",
  "ron": "MD RO",
  "rus": "BY KZ RU UA",
  "sin": "LK",
  "slk": "SK",
  "slv": "SI",
  "som": "SO",
  "spa": "419 AR BO CL CO CR CU DO EC ES GT HN MX NI PA PE PR PY SV US UY VE",
  "srp": "BA ME RS",
  "sun": "ID",
  "swe": "FI SE",
  "swh": "KE TZ",
  "tam": "IN LK MY SG",
  "tel": "IN",
  "tgk": "TJ",
  "tgl": "PH",
  "tha": "TH",
  "tur": "CY TR",
  "uig": "CN",
  "ukr": "UA",
  "urd": "IN PK",
  "uzn": "UZ",
  "vie": "VN",
  "xho": "ZA",
  "yue": "CN HK",
  "zsm": "BN MY SG",
  "zul": "ZA",
}

_REGION = re.compile(r"[A-Za-z]{2}|[0-9]{3}")


def _parse(line: str) -> Language:
  row, _, other = line.partition("|")
  index, iso639_3, iso639_1, script, tatoeba, flores, ntrex, family, name = row.split(maxsplit=8)
  family, _, branch = family.partition("/")
  return Language(
    index=int(index),
    name=name.strip(),
    iso639_3=iso639_3,
    iso639_1=None if iso639_1 == "-" else iso639_1,
    script=script,
    family=family,
    branch=f"{branch} {family}" if branch else family,
    tatoeba=None if tatoeba == "-" else tatoeba,
    flores=() if flores == "-" else tuple(flores.split(",")),
    ntrex=None if ntrex == "-" else ntrex,
    other=tuple(other.split()),
  )


def _key(code: str) -> str:
  return code.strip().lower().replace("-", "_")


def _aliases(languages: Iterable[Language]) -> dict[str, Language]:
  """Returns the language of every accepted code (see `_key`); ValueError if two share a code."""
  aliases: dict[str, Language] = {}
  default_script: dict[str, str] = {}
  for entry in languages:
    codes = {entry.iso639_3, entry.iso639_1, entry.tatoeba, entry.ntrex, *entry.other} - {None}
    keys = {_key(code) for code in codes if code}
    bare = {key for key in keys if "_" not in key}
    default = default_script.setdefault(entry.iso639_3, entry.script) == entry.script
    regions = _REGIONS.get(f"{entry.iso639_3}_{entry.script}", "").split()
    if default:
      regions += _REGIONS.get(entry.iso639_3, "").split()
    else:
      keys -= bare
    keys |= {_key(code) for code in (*entry.flores, entry.name)}
    for stem in bare:
      scripted = f"{stem}_{entry.script}"
      keys.add(_key(scripted))
      keys |= {_key(f"{prefix}_{region}") for prefix in (stem, scripted) for region in regions}
    for key in keys:
      holder = aliases.setdefault(key, entry)
      if holder is not entry:
        raise ValueError(
          f"code {key!r} belongs to both {holder.name} ({holder.index}) and {entry.name} "
          f"({entry.index}) in the table of languages; remove it from one of them"
        )
  return aliases


LANGUAGES: tuple[Language, ...] = tuple(_parse(line) for line in _TABLE.splitlines())
NUM_LANGUAGES: int = LANGUAGES[-1].index + 1
"""Number of rows of a language embedding table, including row 0 for an unknown language."""

_ALIASES = _aliases(LANGUAGES)


def language(code: str) -> Language:
  """Returns the language of a code.

  Args:
    code: An ISO 639-1, 639-2 or 639-3 code, a Tatoeba, FLORES-200, NTREX or OPUS code, with or
      without script and region ("zh", "cmn_Hans", "zho-CN", "pt_BR"), or an English name. Case does
      not matter, nor whether '-' or '_' joins the parts.

  Raises:
    InputError: no language has this code; the message suggests similar ones.

  Examples:
    >>> language("pt_BR").name
    'Portuguese'
    >>> language("zho-CN") is language("cmn_Hans") is language("zh")
    True
  """
  found = _ALIASES.get(_key(code))
  if found is None:
    raise InputError(_unknown(code))
  return found


@functools.cache
def opus_language(code: str) -> Language | None:
  """Returns the language of an OPUS code, without its region if the region is unknown, or None."""
  stem, *rest = re.split("[_@]", code)
  scripts = [part for part in rest if not _REGION.fullmatch(part)]
  keys = (_key("_".join([stem, *parts])) for parts in (rest, scripts))
  return next((_ALIASES[key] for key in keys if key in _ALIASES), None)


def random_groups(count: int, seed: int = 0, codes: Iterable[str] | None = None) -> tuple[int, ...]:
  """Returns a random group, 0 to `count` - 1, for every language index; groups have similar sizes.

  The same arguments give the same groups. Adding languages to the table does not change the groups
  of others.

  Args:
    count: Number of groups.
    seed: Seed of the assignment.
    codes: Languages of which each group gets a similar number, such as those of the training data;
      the others follow. None: all languages.

  Raises:
    InputError: `count` is below 1 or above the number of languages, or a code is unknown.
  """
  balanced = range(NUM_LANGUAGES) if codes is None else sorted({language(x).index for x in codes})
  if not 1 <= count <= len(balanced):
    raise InputError(f"count is {count}; it must be 1 to {len(balanced)}, the number of languages")
  rng = random.Random(seed)
  order = [*balanced, *(i for i in range(NUM_LANGUAGES) if i not in balanced)]
  groups: list[int] = []
  # Of every `count` languages, each group gets one. Python guarantees that random() keeps its
  # numbers, but not that shuffle() does.
  while len(groups) < NUM_LANGUAGES:
    groups += sorted(range(count), key=lambda _: rng.random())
  of_index = dict(zip(order, groups, strict=False))
  return tuple(of_index[index] for index in range(NUM_LANGUAGES))


def own_groups(codes: Iterable[str]) -> tuple[int, ...]:
  """Returns a group for every language index: a separate one for each of `codes`, else -1.

  Raises:
    InputError: a code is unknown, or two codes are the same language.
  """
  groups = [-1] * NUM_LANGUAGES
  for group, code in enumerate(codes):
    index = language(code).index
    if groups[index] != -1:
      raise InputError(f"{code!r} is named twice: it is {language(code).name}; remove one")
    groups[index] = group
  return tuple(groups)


def _unknown(code: str) -> str:
  import difflib  # only needed for an error

  key = _key(code)
  message = f"unknown language code {code!r}"
  stem, *rest = key.split("_")
  if stem in _ALIASES and rest:
    if all(part in _ALIASES for part in rest):
      return f"{message}: it looks like a pair of languages; give one of {', '.join([stem, *rest])}"
    return (
      f"{message}: {stem!r} is {_ALIASES[stem].name}, but {'_'.join(rest)!r} of it is unknown; "
      f"give {stem!r}, or add the code to vmsst/languages.py"
    )
  near = difflib.get_close_matches(key, _ALIASES, n=8, cutoff=0.6)
  best = {_ALIASES[name].name: name for name in reversed(near)}  # the most similar code of each
  if best:
    suggestions = [f"{best[name]!r} ({name})" for name in reversed(best)]
    message += f": did you mean {', '.join(suggestions[:4])}?"
  else:
    message += "."
  return (
    f"{message} Supported are ISO 639, Tatoeba, FLORES-200 and NTREX codes (vmsst/languages.py)"
  )
