"""The console: pages on which operators watch and change a cluster; `tandemq console`.

    server       the process: settings, start, stop
    app          the application: all routes, what is checked before a page is shown, headers of every response
    routes       the table of routes, each with the role that it needs
    pages/       one file per family of pages: what is asked, what is shown, what is changed
    cluster/     what pages know of the cluster: one poller for all viewers, tables, messages, dead letters
    access/      accounts, passwords, sessions, limits of attempts
    web/         a visit (request, account, form), templates, translations
    templates/ static/    what browsers get

Every page works without JavaScript; htmx (static/htmx.min.js) keeps pages current. A change needs a POST with the
session's token, and leaves an entry in the audit log. Source: docs/guides/console.md, docs/decisions/0017-console.md.
"""
