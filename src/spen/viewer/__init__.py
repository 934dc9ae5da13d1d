"""The web page: see how a descent finds its answer, on images and on sentences.

`film`, `pictures`, `denoising`, `roles`, `landscape` and `runs` turn results into HTML and know nothing of a server;
`catalogue` says what a visitor may open; `page` wires them to Gradio, and `server` serves the page.
"""
