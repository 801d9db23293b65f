"""Chat templates of our own, written in the manners that models' templates are."""

from __future__ import annotations

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Prints BOS, trims, takes text or parts, puts the system's text before the user's.
TURNS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
  {%- if messages[0]['content'] is string -%}
    {%- set prefix = messages[0]['content'] + '\\n\\n' -%}
  {%- else -%}
    {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
  {%- endif -%}
  {%- set rest = messages[1:] -%}
{%- else -%}
  {%- set prefix = '' -%}
  {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception("roles must alternate") }}
  {%- endif -%}
  {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
  {{ '<|im_start|>' + role + '\\n' + (prefix if loop.first else '') }}
  {%- if message['content'] is string -%}
    {{ message['content'] | trim }}
  {%- else -%}
    {%- for item in message['content'] -%}
      {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>model\\n' }}{%- endif -%}
"""

# Refuses a system message.
NO_SYSTEM = """\
{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}
{% endif %}
{% for m in messages %}
{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>\\n' }}
{% endfor %}
"""

# Takes parts only.
PARTS_ONLY = """\
{% for m in messages %}<|im_start|>{{ m.role }}:{% for part in m.content if part.type == 'text' -%}
{{ part.text }}{% endfor %}<|im_end|>{% endfor %}
"""

# Makes markers of roles, drops what was thought, calls tools.
TOOLS = """\
{%- macro spelled(value) -%}
  {%- if value is mapping -%}{{ value | tojson }}{%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
  {{- '<|im_start|>system\\n' -}}
  {%- for tool in tools -%}{{- tool.function | tojson(indent=2) ~ '\\n' -}}{%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(last=messages | length - 1, calls=0) -%}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else '' -%}
  {%- if message.role == 'assistant' and '</think>' in content -%}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
  {%- endif -%}
  {{- '<|' + message.role + '|>' -}}
  {%- if message.role == 'tool' -%}<{{ message.name }}>{%- endif -%}
  {{- content -}}
  {%- for call in message.tool_calls or [] -%}
    {%- set ns.calls = ns.calls + 1 -%}
    {{- '\\n<call ' ~ ns.calls ~ '>' ~ call.function.name -}}
    {%- for key, value in call.function.arguments | items -%}
      {{- '\\n<' ~ key ~ '>' ~ spelled(value) ~ '</' ~ key ~ '>' -}}
    {%- endfor -%}
  {%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

ALL = {
    "chatml": CHATML,
    "no_system": NO_SYSTEM,
    "parts_only": PARTS_ONLY,
    "tools": TOOLS,
    "turns": TURNS,
}
