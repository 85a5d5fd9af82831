import pytest

from tandemq import registry
from tandemq.coordination.registry import interface as of_the_core
from tandemq.errors import LocalError
from tandemq.registry import Create, Read, RegistryAddress, parse_address, refusal


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("zookeeper://a:2181,b:2181", RegistryAddress("zookeeper", "a:2181,b:2181")),
        (" namesrv://127.0.0.1:9876 ", RegistryAddress("namesrv", "127.0.0.1:9876")),
        ("namesrv://[::1]:9876", RegistryAddress("namesrv", "[::1]:9876")),
    ],
)
def test_address_is_parsed_and_formatted(text: str, address: RegistryAddress) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:9876",
        "etcd://a:1",
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
    shell = {"RegistryAddress", "RegistrySession", "parse_address"}
    assert public - shell <= set(of_the_core.__all__)
