"""Accounts of ACL 1.0 become users and policies of ACL 2.0."""

import pytest

from tandemq.errors import ConfigError
from tandemq.model.access import Need, ResourceKind, Rules, actions
from tandemq.model.accounts import Account, Translated, parse_permissions, translated
from tandemq.model.topic import TRACE_TOPIC

NAME, KEY = "shop-app", "shop-key"


def account(**parts: object) -> Account:
    return Account(access_key=NAME, secret_key=KEY, **parts)  # type: ignore[arg-type]


def may(found: Translated, kind: ResourceKind, name: str, *what: str) -> bool:
    need = Need(kind, name, actions(*what))
    return found.user.is_super or bool(Rules(found.policies).allows(need, "10.0.0.1"))


def test_an_account_becomes_a_user_with_its_permissions() -> None:
    found = translated(
        account(
            topics={"a": "PUB", "b": "SUB", "c": "PUB|SUB", "d": "DENY", "e": "SUB|PUB", "f": "what"},
            groups={"g": "SUB", "%RETRY%h": "SUB", "i": "DENY"},
            default_topic="PUB",
            default_group="SUB",
            white_addresses="10.0.0.7",
        )
    )
    assert (found.user.username, found.user.password, found.user.user_type) == (NAME, KEY, "Normal")
    assert found.user.white_addresses == "10.0.0.7"
    sends = [name for name in "abcdefz" if may(found, ResourceKind.TOPIC, name, "Pub")]
    pulls = [name for name in "abcdefz" if may(found, ResourceKind.TOPIC, name, "Sub")]
    assert (sends, pulls) == (["a", "c", "e", "z"], ["b", "c", "e"])
    assert [name for name in "ghiz" if may(found, ResourceKind.GROUP, name, "Sub")] == ["g", "h", "z"]
    assert may(found, ResourceKind.TOPIC, TRACE_TOPIC, "Pub")
    assert not may(found, ResourceKind.TOPIC, "a", "Create")
    assert not may(found, ResourceKind.CLUSTER, "c", "Get")


def test_an_absent_default_denies() -> None:
    for default in (None, "DENY", "nonsense"):
        found = translated(account(default_topic=default))
        assert not may(found, ResourceKind.TOPIC, "t", "Pub", "Sub")


def test_the_trace_topic_may_be_published_to_by_each_account() -> None:
    denied = translated(account(topics={TRACE_TOPIC: "DENY"}))
    assert may(denied, ResourceKind.TOPIC, TRACE_TOPIC, "Pub") and not may(
        denied, ResourceKind.TOPIC, TRACE_TOPIC, "Sub"
    )
    for listed in ("DENY", "PUB"):
        bound = translated(account(topics={TRACE_TOPIC: listed}, default_topic="SUB"))
        assert not may(bound, ResourceKind.TOPIC, TRACE_TOPIC, "Sub")
        assert translated(Account(access_key=NAME), bound) == bound
    both = translated(account(topics={TRACE_TOPIC: "SUB"}))
    assert may(both, ResourceKind.TOPIC, TRACE_TOPIC, "Pub") and may(both, ResourceKind.TOPIC, TRACE_TOPIC, "Sub")


def test_an_admin_without_lists_is_a_super_user() -> None:
    assert translated(account(is_admin=True, default_topic="DENY")).user.is_super


def test_an_admin_with_lists_administers_and_is_bound_by_them_in_sends_and_pulls() -> None:
    found = translated(account(is_admin=True, topics={"a": "PUB"}, default_topic="SUB"))
    assert not found.user.is_super
    for kind in (ResourceKind.TOPIC, ResourceKind.GROUP):
        assert (
            may(found, kind, "any", "Create")
            and may(found, kind, "any", "Update")
            and may(found, kind, "any", "Delete")
        )
    assert may(found, ResourceKind.CLUSTER, "c", "Update")
    assert may(found, ResourceKind.TOPIC, "a", "Pub") and not may(found, ResourceKind.TOPIC, "a", "Sub")
    assert may(found, ResourceKind.TOPIC, "z", "Sub") and not may(found, ResourceKind.TOPIC, "z", "Pub")
    assert not may(found, ResourceKind.GROUP, "g", "Sub")


@pytest.mark.parametrize(
    "wrong",
    [
        Account(access_key="short1", secret_key=KEY),
        Account(access_key=NAME, secret_key="short1"),
        Account(access_key=NAME),
        Account(access_key="x" * 256, secret_key=KEY),
        Account(access_key=NAME, secret_key="x" * 256),
        Account(access_key="tandemq-member-1", secret_key=KEY),
        account(topics={"prefix*": "PUB"}),
        account(groups={"*": "SUB"}),
        account(topics={"x" * 256: "SUB"}),
        account(topics={str(number): "SUB" for number in range(5_001)}),
    ],
)
def test_an_invalid_account_is_refused(wrong: Account) -> None:
    with pytest.raises(ConfigError) as caught:
        translated(wrong)
    assert KEY not in str(caught.value)


def test_a_change_keeps_what_it_does_not_give() -> None:
    before = translated(
        account(topics={"a": "PUB"}, groups={"g": "SUB"}, default_topic="SUB", white_addresses="10.0.0.7")
    )
    after = translated(Account(access_key=NAME, topics={"b": "SUB"}), before)
    assert (after.user.password, after.user.white_addresses) == (KEY, "10.0.0.7")
    assert not may(after, ResourceKind.TOPIC, "a", "Pub") and may(after, ResourceKind.TOPIC, "b", "Sub")
    assert may(after, ResourceKind.GROUP, "g", "Sub") and may(after, ResourceKind.TOPIC, "z", "Sub")
    denied = translated(Account(access_key=NAME, default_topic="DENY", secret_key="new-key-1"), after)
    assert denied.user.password == "new-key-1" and not may(denied, ResourceKind.TOPIC, "z", "Sub")
    bound = translated(Account(access_key=NAME, is_admin=True), denied)
    assert may(bound, ResourceKind.CLUSTER, "c", "Update") and not bound.user.is_super
    assert translated(Account(access_key=NAME), bound).policies == denied.policies


def test_permissions_have_one_form() -> None:
    assert parse_permissions(["a=PUB", " b = SUB "]) == {"a": "PUB", "b": "SUB"}
    for wrong in (["a"], ["=PUB"], ["a=PUB", "a=SUB"]):
        with pytest.raises(ConfigError):
            parse_permissions(wrong)


def test_texts_of_an_account_have_no_key() -> None:
    assert KEY not in repr(account())


def test_the_permission_of_a_name_replaces_the_default_also_after_changes() -> None:
    before = translated(account(topics={"a": "SUB"}, default_topic="PUB"))
    assert not may(before, ResourceKind.TOPIC, "a", "Pub") and may(before, ResourceKind.TOPIC, "z", "Pub")
    wider = translated(Account(access_key=NAME, default_topic="PUB|SUB"), before)
    assert not may(wider, ResourceKind.TOPIC, "a", "Pub") and may(wider, ResourceKind.TOPIC, "a", "Sub")
    other = translated(Account(access_key=NAME, topics={"b": "PUB"}), wider)
    assert may(other, ResourceKind.TOPIC, "a", "Pub") and not may(other, ResourceKind.TOPIC, "b", "Sub")
    assert translated(Account(access_key=NAME), other) == other
