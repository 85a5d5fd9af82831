"""The JSON API below /api/v1: the operations of the pages, for programs with a token.

    operation    an operation of the table, the arguments of its handler, and the types of both
    types        JSON objects of requests and responses
    routes       the table of operations, each with the role that it needs
    endpoint     checks before an operation runs: token, rate, role, types; errors in one form
    openapi      the description of the table as an OpenAPI document
    handlers/    one file per family of operations

Sessions and cookies do not count here, so a browser cannot be made to send a request with a user's rights.
Source: docs/guides/console-api.md.
"""
