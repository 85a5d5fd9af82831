import pytest

from tandemq import registry
from tandemq.coordination.registry import interface as of_the_core
from tandemq.errors import LocalError
from tandemq.registry import Create, EtcdAccess, Read, RegistryAddress, parse_address, refusal


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("zookeeper://a:2181,b:2181", RegistryAddress("zookeeper", "a:2181,b:2181")),
        (" namesrv://127.0.0.1:9876 ", RegistryAddress("namesrv", "127.0.0.1:9876")),
        ("namesrv://[::1]:9876", RegistryAddress("namesrv", "[::1]:9876")),
        ("etcd://a:2379,[::1]:2379", RegistryAddress("etcd", "a:2379,[::1]:2379")),
        ("etcd://a:1/apps/mq", RegistryAddress("etcd", "a:1", "/apps/mq")),
        ("etcd://a:1?tls=true", RegistryAddress("etcd", "a:1", "", EtcdAccess(tls=True))),
        (
            "etcd://a:1/x?tls=true&ca=/ca.pem&cert=/c.pem&key=/k.pem&user=mq&passwordFile=/a=b",
            RegistryAddress("etcd", "a:1", "/x", EtcdAccess(True, "/ca.pem", "/c.pem", "/k.pem", "mq", "/a=b")),
        ),
    ],
)
def test_address_is_parsed_and_formatted(text: str, address: RegistryAddress) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


def test_authorities_of_etcd_imply_tls_and_a_slash_is_no_prefix() -> None:
    assert parse_address("etcd://a:1/?ca=/ca.pem").access.tls
    assert parse_address("etcd://a:1/").prefix == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("etcd://", "not the host:port"),
        ("etcd://a", "not the host:port"),
        ("etcd://a:1,b", "not the host:port"),
        ("etcd://a:1//x", "not a registry path"),
        ("etcd://a:1/x/../y", "not a registry path"),
        ("etcd://a:1?password=x", "'password=x' is not a parameter"),
        ("etcd://a:1?ca", "'ca' is not a parameter"),
        ("etcd://a:1?ca=/a&ca=/b", "'ca' is given twice"),
        ("etcd://a:1?tls=no", "write tls=true"),
        ("etcd://a:1?ca=/a&cert=/c", "'cert' without 'key'"),
        ("etcd://a:1?ca=/a&key=/c", "'key' without 'cert'"),
        ("etcd://a:1?user=mq", "'user' without 'passwordFile'"),
        ("etcd://a:1?passwordFile=/p", "'passwordFile' without 'user'"),
        ("etcd://a:1?cert=/c&key=/k", "'cert' without TLS"),
        ("zookeeper://a:1/chroot", "not the host:port"),
    ],
)
def test_malformed_address_of_etcd_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:9876",
        "consul://a:1",
        "zookeeper://",
        "zookeeper://a",
        "zookeeper://a:b",
        "zookeeper://a:0",
        "zookeeper://a:70000",
        "zookeeper://a:1,,b:2",
        "namesrv://a:1,b:2",
        "namesrv://a b:1",
        "namesrv://a\n:1",
    ],
)
def test_malformed_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(LocalError, match=r"not the address|not the host:port|one name server"):
        parse_address(text)


def test_refusal_names_the_path_or_the_size() -> None:
    assert refusal(Read("/a/b")) is None
    assert "'a' is not a registry path" in str(refusal(Read("a")))
    assert "at most 262144 bytes" in str(refusal(Create("/a", bytes(262_145))))


def test_core_exports_all_types_but_those_of_the_shell() -> None:
    public = {name for name, value in vars(registry).items() if getattr(value, "__module__", "") == registry.__name__}
    shell = {"EtcdAccess", "RegistryAddress", "RegistrySession", "parse_address"}
    assert {name for name in public - shell if not name.startswith("_")} <= set(of_the_core.__all__)
