"""The settings that a proxy beside a broker has from it."""

import pytest

from tandemq.config.files import load_proxy_config
from tandemq.config.settings import BrokerConfig
from tandemq.run.proxy_beside import proxy_settings


def test_a_proxy_has_its_brokers_settings_of_tls_users_name_servers_and_interface() -> None:
    credentials = '{"accessKey":"inner","secretKey":"a=b #c"}'
    broker = BrokerConfig(
        name_servers=("a:1", "b:2"),
        bind_address="127.0.0.1",
        log_format="json",
        tls_mode="enforcing",
        tls_test_mode=True,
        tls_verify_servers=True,
        authentication_enable=True,
        inner_credentials=credentials,
        metrics_port=5,
    )
    text = "".join(f"{key} = {value}\n" for key, value in proxy_settings(broker, 8081).items())
    proxy = load_proxy_config(text, path="proxy.conf", warn=pytest.fail)
    assert (proxy.name_servers, proxy.bind_address, proxy.listen_port) == (("a:1", "b:2"), "127.0.0.1", 8081)
    assert (proxy.tls_mode, proxy.tls_test_mode, proxy.tls_verify_servers) == ("enforcing", True, True)
    assert (proxy.authentication_enable, proxy.authorization_enable) == (True, False)
    assert (proxy.inner_credentials, proxy.log_format) == (credentials, "json")
    assert not proxy.is_monitored, "the ports of metrics are the broker's"


def test_accounts_of_files_are_checked_by_the_proxy_too() -> None:
    settings = proxy_settings(BrokerConfig(name_servers=("a:1",), acl_enable=True), 0)
    assert (settings["authenticationEnabled"], settings["authorizationEnabled"]) == ("true", "true")
