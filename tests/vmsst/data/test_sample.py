import pytest

from vmsst.data import sample, vocabularies
from vmsst.data.sample import Meaning

# Written by hand.
WRITTEN = {
  Meaning("past", "sister", "meet an old friend", "hotel", "yesterday"): {
    "en": "My sister met an old friend at the hotel yesterday.",
    "es": "Mi hermana quedó con un viejo amigo en el hotel ayer.",
    "de": "Meine Schwester hat gestern im Hotel einen alten Freund getroffen.",
    "fr": "Ma sœur a retrouvé un vieil ami à l'hôtel hier.",
    "ru": "Вчера моя сестра встретилась со старым другом в гостинице.",
    "tr": "Kız kardeşim dün otelde eski bir dostla buluştu.",
    "zh": "我姐姐昨天在酒店和一位老朋友见了面。",
    "ar": "أختي التقت بصديق قديم في الفندق أمس.",
  },
  Meaning("want", "workers", "wait for the bus", "library", "tomorrow"): {
    "en": "The workers want to wait for the bus in front of the library tomorrow.",
    "es": "Los obreros quieren esperar el autobús delante de la biblioteca mañana.",
    "de": "Die Arbeiter wollen morgen vor der Bibliothek auf den Bus warten.",
    "fr": "Les ouvriers veulent attendre le bus devant la bibliothèque demain.",
    "ru": "Рабочие хотят завтра подождать автобус перед библиотекой.",
    "tr": "İşçiler yarın kütüphanenin önünde otobüsü beklemek istiyor.",
    "zh": "工人们明天想在图书馆前面等公共汽车。",
    "ar": "العمال يريدون أن ينتظروا الحافلة أمام المكتبة غدًا.",
  },
}


@pytest.mark.parametrize("language", sample.LANGUAGES)
def test_sentences_agree_as_written_by_hand(language):
  book = sample.phrasebook(language)
  assert [book.sentence(meaning) for meaning in WRITTEN] == [
    row[language] for row in WRITTEN.values()
  ]


def test_a_number_is_one_meaning_for_good():
  # Recorded: gin files, results and the shipped vocabulary depend on the order.
  assert sample.slots(0) == Meaning("present", "mother", "feed the birds", "museum", "on Sundays")
  assert sample.slots(0, "validation") == Meaning(
    "past", "taxi driver", "walk the dog", "hotel", "last Saturday"
  )
  assert sample.sentence(0, "en") == "My mother feeds the birds next to the museum on Sundays."
  assert sample.num_meanings("train") == 77_760
  assert sample.num_meanings("validation") == 2_160


def test_validation_joins_what_training_never_joins():
  train, held_out = (
    [sample.slots(i, split) for i in range(sample.num_meanings(split))] for split in sample.SPLITS
  )
  assert (len(set(train)), len(set(held_out))) == (len(train), len(held_out))
  for slot in ("subject", "place", "time"):
    pairs = {(meaning.predicate, getattr(meaning, slot)) for meaning in train}
    assert pairs.isdisjoint((meaning.predicate, getattr(meaning, slot)) for meaning in held_out)
  for slot in Meaning._fields:
    seen = {getattr(meaning, slot) for meaning in train}
    assert seen.issuperset(getattr(meaning, slot) for meaning in held_out)


@pytest.mark.parametrize("language", sample.LANGUAGES)
def test_sentences_are_distinct_and_the_vocabulary_writes_each(language):
  count = sample.num_meanings("validation")
  texts = [sample.sentence(i, language, "validation") for i in range(count)]
  train = [sample.sentence(i, language) for i in range(10_000)]
  assert len({*texts}) == count
  assert {*texts}.isdisjoint(train)
  vocabulary = vocabularies.SentencePieceVocabulary(sample.vocabulary_path())
  texts = texts[:500] + train[:500]
  for text, ids in zip(texts, vocabulary.encode(texts, 32), strict=True):
    assert ids[-1] == vocabulary.eos_id == 1  # no sentence is longer than 32
    assert vocabulary.unk_id not in ids
    assert vocabulary.decode(ids) == text
