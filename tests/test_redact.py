"""No known secret is left in what is stored or shown, and nothing else is taken out."""

from string import ascii_uppercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.redact import MARK, SHORTEST, Redactor

SECRETS = st.lists(st.text("AB7-", min_size=SHORTEST, max_size=12), max_size=4)
TEXTS = st.text(ascii_uppercase + digits + "- /=", max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def leaks(draw: st.DrawFn) -> tuple[list[str], str]:
    """Draw secrets and a text with some of them in it, side by side or one in the other."""
    secrets = draw(SECRETS)
    pieces = st.sampled_from(secrets) if secrets else st.nothing()
    return secrets, "".join(draw(st.lists(pieces | TEXTS, max_size=6)))


@given(leaks())
def test_no_secret_is_left_in_a_text(leak: tuple[list[str], str]) -> None:
    """Wherever secrets stand in a text, none is left, and a second pass changes nothing."""
    secrets, text = leak
    redactor = Redactor.of(secrets)
    clean = redactor.text(text)
    assert [secret for secret in secrets if secret in clean] == []
    assert redactor.text(clean) == clean


@given(leaks(), JSON)
def test_no_secret_is_left_in_a_value(leak: tuple[list[str], str], other: object) -> None:
    """Secrets in lists and in keys and values of objects are taken out at any depth."""
    secrets, text = leak
    clean = Redactor.of(secrets).value({text: [text, (text, {"deep": text})], "other": other})
    assert [secret for secret in secrets if secret in repr(clean)] == []


@given(JSON)
def test_value_without_secrets_is_left_alone(value: object) -> None:
    """What holds no secret comes back as it was."""
    assert Redactor.of(["not-in-there"]).value(value) == value


@pytest.mark.parametrize("value", [None, True, 7, 0.5])
def test_other_values_pass(value: object) -> None:
    """What is no text cannot hold a secret and keeps its type."""
    assert Redactor.of(["secret-1"]).value(value) is value


def test_longer_secret_goes_first() -> None:
    """A secret that begins with another is taken out whole."""
    assert Redactor.of(["token-1", "token-1-and-more"]).text("x token-1-and-more y token-1") == f"x {MARK} y {MARK}"


def test_short_values_are_no_secrets() -> None:
    """A value of fewer than six characters would take words out of every text, so it is left."""
    assert Redactor.of(["", "  ", "a", "12345"]).text("a 12345 word") == "a 12345 word"
    assert Redactor.of(["123456"]).text("a 123456 word") == f"a {MARK} word"


def test_space_around_a_secret_is_no_part_of_it() -> None:
    """A secret that was read with its line's end is found without it."""
    assert Redactor.of(["sk-12345\n"]).text("key=sk-12345;") == f"key={MARK};"


def test_same_secrets_make_the_same_redactor() -> None:
    """The order in which secrets are known, and how often, makes no difference."""
    secrets = [f"secret-{n}" for n in range(9)]
    assert Redactor.of(secrets) == Redactor.of([*reversed(secrets), *secrets])


def test_redactor_does_not_show_its_secrets() -> None:
    """A redactor that is printed or logged by mistake tells no secret."""
    assert "secret-1" not in repr(Redactor.of(["secret-1"]))
