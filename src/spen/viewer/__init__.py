"""The web page that shows descents step by step. Tasks define their own tabs.

`iterates`, `pictures`, `landscape` and `runs` turn results into HTML; `catalogue` lists what a visitor may open; `tabs`
is the interface for the tab of a task, `own` the tab of a user's own model; `page` builds the page, `server` serves it.
"""
