"""The web page: see how a descent finds its answer. It knows no task; a task brings a tab of its own.

`iterates`, `pictures`, `landscape` and `runs` turn results into HTML and know nothing of a server; `catalogue` says
what a visitor may open; `tabs` holds what a task's tab works with; `page` builds the page, and `server` serves it.
"""
