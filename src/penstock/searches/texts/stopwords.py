"""Languages that have a stemmer, and their stop words: words that nearly every text has."""

from __future__ import annotations

from typing import Final

__all__ = ["ELISIONS", "LANGUAGES", "STOP_WORDS"]

LANGUAGES: Final = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque",
    "fa": "persian", "fi": "finnish", "fr": "french", "ga": "irish", "hi": "hindi",
    "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian",
    "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil",
    "tr": "turkish", "yi": "yiddish", "porter": "porter",
}  # fmt: skip
"""By their codes in ISO 639."""

STOP_WORDS: Final = {
    language: frozenset(words.split())
    for language, words in {
        "english": "a an and are as at be but by for if in into is it no not of on or such that the their"
        " then there these they this to was will with",
        "german": "aber als am an auch auf aus bei bin bis bist da dass das dem den der des die du durch ein"
        " eine einem einen einer eines er es für hat ich ihr im in ist ja mit nach nicht noch nur oder sich"
        " sie sind so über um und uns unter vom von vor war was wie wir wird zu zum zur",
        "french": "a à au aux avec ce ces dans de des du elle en est et eux il ils je la le les leur lui ma"
        " mais me même mes moi mon ne nos notre nous on ou par pas pour qu que qui sa se ses son sur ta te"
        " tes toi ton tu un une vos votre vous y",
        "spanish": "a al ante como con de del desde donde e el ella ellos en entre es esta este fue ha la las"
        " le les lo los más me mi muy no o para pero por que se ser si sin sobre su sus también un una uno"
        " unos y ya",
        "italian": "a ad al alla alle anche che chi ci come con da dal dalla dei del della di e ed è gli ha i"
        " il in io la le lo ma mi ne nei nel nella non o per più se si sono su sul sulla tra un una uno",
        "portuguese": "a ao aos as até com como da das de do dos e é ela ele em entre era essa esse esta este"
        " eu foi mais mas na não nas no nos o os ou para pela pelo por quando que se sem ser seu sua também"
        " um uma",
        "dutch": "aan als bij dan dat de der des deze die dit door dus een en er haar heb heeft het hij"
        " hoe ik in is je kan maar me met mij na naar niet nog nu of om onder ook op over te tot u uit van"
        " veel voor was wat we wel wij zijn zo zou",
    }.items()
}
"""English has those of Lucene's analyzer; the others have their commonest articles and pronouns."""

ELISIONS: Final = {
    "french": frozenset(
        ["l", "m", "t", "qu", "n", "s", "j", "d", "c", "jusqu", "quoiqu", "lorsqu", "puisqu"]
    ),
    "italian": frozenset(
        [
            "c",
            "l",
            "all",
            "dall",
            "dell",
            "nell",
            "sull",
            "coll",
            "pell",
            "gl",
            "agl",
            "dagl",
            "degl",
            "negl",
            "sugl",
            "un",
            "m",
            "t",
            "s",
            "v",
            "d",
        ]
    ),
    "catalan": frozenset(["d", "l", "m", "n", "s", "t"]),
    "irish": frozenset(["d", "m", "b"]),
}
"""What stands before an apostrophe, and isn't of the word."""
