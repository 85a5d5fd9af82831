"""Pauses and settings of processes that are started again."""

import pytest

from tandemq.config.files import load_broker_config
from tandemq.config.settings import BrokerConfig
from tandemq.config.shards import settings_of
from tandemq.run.restarted_child import RestartedChild, RestartPause, settings_text


def test_pause_doubles_while_a_process_ends_soon_and_there_is_none_after_a_long_life() -> None:
    pause = RestartPause()
    assert [pause.after(0.5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pause.after(10.0) == 0
    assert pause.after(9.9) == 1


def test_settings_with_the_characters_of_properties_files_pass_unchanged() -> None:
    config = BrokerConfig(
        init_user='{"username":"u","password":"a\\\\b=c #d!é"}', store_path="C:\\store", zone="# ! = : \\"
    )
    text = settings_text(settings_of(config))
    assert load_broker_config(text, path="shard.conf", warn=pytest.fail) == config


def test_child_that_was_stopped_before_its_start_is_not_started() -> None:
    child = RestartedChild("the broker", ["broker"], {})
    child.stop()
    child.spawn()
    assert (child.pid, child.is_clean, child.is_stopping) == (0, True, True)
