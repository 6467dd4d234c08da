"""llama.cpp's server with a chat template of its own.

Start one with ``python -m tests.helpers.templated_server --model M.gguf --port P``.

The packaged model is a base model without any template.
"""

from __future__ import annotations

import argparse
import threading

import xllamacpp

from verifier.servers.process.embedded import parameters

TEMPLATE = """\
{%- if tools %}<start_of_turn>tools
{{ tools | tojson }}<end_of_turn>
{% endif %}
{%- for message in messages %}<start_of_turn>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
Call: {{ call.function | tojson }}
{%- endfor %}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    settings = parameters(options.model, options.port, "none", threads=1, context=1024, slots=1, synthetic=0.0)
    settings.chat_template = TEMPLATE
    settings.use_jinja = True
    server = xllamacpp.Server(settings)
    print(f"serving {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
