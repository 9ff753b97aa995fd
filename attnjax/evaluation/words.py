"""Words for prompts: everyday adjectives and nouns, from which keys such as "quiet-river" are made.

RULER takes its words from the package wonderwords; the list here is our own, so keys differ from those of published results.
"""

_ADJECTIVES = """
    able acid aged alert amber ancient arctic aware azure basic blue bold brave brief bright broad bronze busy calm
    careful cheap chief civil classic clean clear clever close cloudy coarse cold common cool copper crisp curious daily dark
    dear deep dense direct distant double dry dull eager early eastern easy elder empty entire equal exact extra fair famous
    fancy far fast final fine firm first flat fluent fond formal free fresh full funny gentle giant glad global golden good
    grand grateful gray great green handy happy hard heavy hidden high hollow honest hot huge humble icy ideal inner"""
_NOUNS = """
    acorn actor anchor apple arrow autumn bakery balcony bamboo banner barn basket beach beacon bell bicycle blanket boat
    bottle bridge brook broom bucket button cabin camera candle canvas canyon carpet castle cave cellar chapel cherry circle
    clock cloud coast coffee comet compass coral corner cotton cradle creek crown curtain daisy desert diamond dinner dragon
    drawer drum eagle elbow engine falcon farmer feather fence ferry fiddle flame flower forest fountain fox garden gate glacier
    glove guitar hammer harbor hat hedge helmet hill honey horizon horse hotel island jacket jewel jungle kettle
    kitchen"""
ADJECTIVES, NOUNS = tuple(_ADJECTIVES.split()), tuple(_NOUNS.split())
_WORDS = (*NOUNS, *ADJECTIVES)
BARE = tuple(word for word in _WORDS if not any(word in other for other in _WORDS if other != word))
"""Words of which none is a part of another, as "hot" is of "hotel": a prediction holds one only where it says it."""
KEYS = tuple(f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS)
"""Keys of needles. None is a part of another."""


def triples() -> list[str]:
    """Returns words such as "calm-quiet-river", for texts that all `KEYS` do not fill. None is a part of another.

    Example:
      >>> len(triples()), triples()[0]
      (865046, 'able-acid-acorn')
    """
    pairs = [f"{one}-{other}" for i, one in enumerate(ADJECTIVES) for other in (*ADJECTIVES[i + 1 :], *ADJECTIVES[:i])]
    return [f"{pair}-{noun}" for pair in pairs for noun in NOUNS]
