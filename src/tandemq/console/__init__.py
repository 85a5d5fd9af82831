"""The console: pages on which operators watch and change a cluster; `tandemq console`.

    server       the process: settings, start, stop
    app          the application: all routes, checks before a page is shown, headers of every response
    routes       the table of routes, each with the role that it needs
    pages/       one file per family of pages: their forms, and the values that they show
    api/         the JSON API, for programs with a token, and its OpenAPI document
    operations/  changes and queries of pages and API, with their entries in the audit log
    cluster/     state of the cluster: one poller for all viewers, tables, messages, dead letters
    access/      accounts, passwords, sessions, tokens, limits of attempts and rates
    pipeline_files    files of the data pipeline on disk
    query_files       streaming queries of pipeline projects, from their checkpoints
    web/         a visit (request, account, form), templates, translations
    templates/ static/    pages, styles and scripts for browsers

Every page works without JavaScript; htmx (static/htmx.min.js) keeps pages current. A change needs a POST with the
session's token, and leaves an entry in the audit log. Source: docs/guides/console.md, docs/decisions/0017-console.md.
"""
