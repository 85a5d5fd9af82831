"""Settings of TLS for clients: files above settings, and what is refused."""

import pytest

from tandemq.config.files import as_properties, load_broker_config, load_name_server_config
from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.config.tls import read_tls
from tandemq.errors import ConfigError

JAVA_FILE = """
tls.test.mode.enable=false
tls.server.need.client.auth=REQUIRE
tls.server.authClient=true
tls.server.keyPath=/opt/server.key
tls.server.keyPassword=a secret
tls.server.certPath=/opt/server.pem
tls.server.trustCertPath=/opt/ca.pem
tls.client.authServer=yes
tls.server.mode=disabled
tls.enable=true
something.else=1
"""


def test_file_overrides_settings_except_mode_and_switch() -> None:
    found = read_tls(BrokerConfig(tls_cert_file="/etc/other.pem", tls_key_file="/etc/other.key"), JAVA_FILE)
    assert (found.tls_cert_file, found.tls_key_file, found.tls_ca_file) == (
        "/opt/server.pem",
        "/opt/server.key",
        "/opt/ca.pem",
    )
    assert (found.tls_client_auth, found.tls_verify_clients) == ("require", True)
    assert found.server_password == "a secret"
    assert not found.tls_verify_servers  # only "true" is true, as in Java
    assert (found.tls_mode, found.tls_enable) == ("permissive", "")
    assert found.serves
    assert not found.connects


def test_without_a_certificate_there_is_no_tls_unless_it_is_enforced() -> None:
    found = read_tls(NameServerConfig(), None)
    assert not found.serves
    assert not found.connects
    with pytest.raises(ConfigError, match=r"enforcing needs tls\.server\.certPath"):
        read_tls(NameServerConfig(tls_mode="enforcing"), None)


@pytest.mark.parametrize(
    ("mode", "enable", "connects"),
    [
        ("permissive", "", False),
        ("permissive", "true", True),
        ("enforcing", "", True),
        ("enforcing", "false", False),
        ("disabled", "true", True),
    ],
)
def test_node_connects_with_tls_if_it_is_enabled_or_enforced(mode: str, enable: str, connects: bool) -> None:
    assert read_tls(BrokerConfig(tls_mode=mode, tls_enable=enable, tls_test_mode=True), None).connects is connects


def test_require_without_verification_is_refused_wherever_it_is_set() -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.need\.client\.auth: require without tls\.server\.authClient"):
        load_broker_config("tls.server.need.client.auth=require\n", path="x.conf", warn=pytest.fail)
    with pytest.raises(ConfigError, match="would accept any certificate"):
        read_tls(BrokerConfig(), "tls.server.need.client.auth=require\n")


def test_certificate_without_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath and tls\.server\.keyPath belong together"):
        read_tls(BrokerConfig(tls_cert_file="a.pem"), None)


@pytest.mark.parametrize("text", ['tls.server.mode = "enforced"', 'tls.enable = "maybe"'])
def test_unknown_values_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is unknown; use one of"):
        load_name_server_config(text, path="x.toml", warn=pytest.fail)


def test_toml_has_the_same_keys() -> None:
    text = 'tls.enable = true\ntls.server.mode = "enforcing"\n[tls.client]\nauthServer = true\n'
    found = load_broker_config(text, path="x.toml", warn=pytest.fail)
    assert (found.tls_enable, found.tls_mode, found.tls_verify_servers) == ("true", "enforcing", True)


def test_use_tls_of_java_is_the_switch_of_connections_to_servers() -> None:
    assert load_broker_config("useTLS=true\n", path="x.conf", warn=pytest.fail).tls_enable == "true"


def test_password_is_read_from_the_file_only_and_never_shown() -> None:
    with pytest.raises(ConfigError, match=r"passwords belong into tls\.config\.file"):
        load_broker_config("tls.server.keyPassword=x\n", path="x.conf", warn=pytest.fail)
    assert "assword" not in as_properties(BrokerConfig())
