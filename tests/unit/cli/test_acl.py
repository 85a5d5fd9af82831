"""`tandemq acl`: lists that the brokers give in pages."""

from collections.abc import Callable
from typing import Any

import pytest

from tandemq.client.admin import access

RunJson = Callable[..., Any]


@pytest.mark.parametrize("page", [1, 2, 3])
def test_lists_have_all_pages(run_json: RunJson, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(access, "PAGE_USERS", page)
    names = [f"paged-{number}" for number in range(3)]
    for name in names:
        run_json("acl", "user", "create", name)
        run_json("acl", "allow", name, "Topic:Orders", "--action", "Pub")
    try:
        assert [user["user"] for user in run_json("acl", "user", "list") if user["user"] in names] == names
        assert [entry["user"] for entry in run_json("acl", "list") if entry["user"] in names] == names
    finally:
        for name in names:
            run_json("acl", "user", "delete", name)
