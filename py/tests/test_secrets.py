import hashlib

import pytest

from switchboard.secrets import Keyring, SecretError, digest, mint

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_minted_secret_has_32_random_bytes() -> None:
    minted = {mint("sbk_") for _ in range(100)}
    assert len(minted) == 100
    assert all(text.startswith("sbk_") and len(text) == 4 + 43 for text in minted)


def test_the_digest_is_that_of_the_text() -> None:
    assert digest("sbk_ä") == digest("sbk_ä".encode()) == hashlib.sha256("sbk_ä".encode()).digest()


@pytest.mark.parametrize("secret", [b"", b"s", b"\x00" * 1000])
def test_what_is_sealed_can_be_opened(secret: bytes) -> None:
    ring = Keyring([OLD])
    sealed = ring.seal(secret)
    assert ring.open(sealed) == secret
    assert len(secret) < 8 or secret not in sealed  # a single byte may be there by chance
    assert ring.seal(secret) != sealed, "two seals of one secret differ"


def test_a_rotated_key_still_opens_and_the_new_one_seals() -> None:
    sealed = Keyring([OLD]).seal(b"secret")
    both = Keyring([NEW, OLD])
    assert both.open(sealed) == b"secret"
    assert not both.is_current(sealed)
    again = both.seal(both.open(sealed))
    assert both.is_current(again)
    assert Keyring([NEW]).open(again) == b"secret"


def test_a_missing_key_is_named_by_its_id_and_never_shown() -> None:
    sealed = Keyring([OLD]).seal(b"secret")
    with pytest.raises(SecretError) as refused:
        Keyring([NEW]).open(sealed)
    assert sealed[1:9].hex() in str(refused.value)
    assert "SWITCHBOARD_SECRET_KEY" in str(refused.value)
    assert OLD.hex() not in str(refused.value)


def test_every_changed_byte_is_noticed() -> None:
    ring = Keyring([OLD])
    sealed = ring.seal(b"secret")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(SecretError):
            ring.open(bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises(SecretError):
            ring.open(sealed[:length])


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(SecretError, match="SWITCHBOARD_SECRET_KEY"):
        Keyring([]).seal(b"secret")
