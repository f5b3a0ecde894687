# SPDX-License-Identifier: Apache-2.0
"""Short hand-written chat templates with the constructs of well-known model families; and one-line snippets
for each construct."""

SHAPES = {
    "chatml": """{% for message in messages %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 8 %}
                {{- ', "id": "' + (tool_call.id ~ "00000000")[:9] + '"}' }}
            {%- endif %}
            {{- ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles, " ~ message.role) }}
    {%- endif %}
{%- endfor %}
""",
    "llama tools": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] if messages[0]['content'] is string else "" %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message['content'] is string %}
            {{- message['content'] | trim }}
        {%- elif message.content is iterable and message.content is not mapping %}
            {%- for content in message['content'] %}
                {%- if content['type'] == 'image' %}
                    {{- '<|image|>' }}
                {%- elif content['type'] == 'text' %}
                    {{- content['text'] }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "hermes": """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "list[" + (json_to_python_type(json_spec['items']) if 'items' in json_spec else 'Any') + "]" }}
{%- elif json_spec.type == "object" %}
    {%- if json_spec.additionalProperties is defined %}
        {{- "dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']' }}
    {%- else %}
        {{- "dict" }}
    {%- endif %}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
        {{- json_to_python_type({"type": t}) }}
        {%- if not loop.last %}{{- "," }}{%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{{- bos_token }}
{{- '<|im_start|>system\\n' }}
{{- "<tools> " }}
{%- for tool in tools or [] %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- '{"type": "function", "function": ' }}
    {{- '{"name": "' + tool.name + '", "description": "' + tool.name + '(' }}
    {%- if tool.parameters is defined %}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + json_to_python_type(param_fields) }}
        {%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {%- endif %}
    {{- ")" }}
    {{- " - " + tool.description + "\\n\\n" }}
    {%- for param_name, param_fields in tool.get("parameters", {}).get("properties", {}).items() %}
        {%- if loop.first %}{{- "    Args:\\n" }}{%- endif %}
        {{- "        " + param_name + "(" + json_to_python_type(param_fields) + "): " + param_fields.description|trim }}
    {%- endfor %}
    {{- '"}' }}
{%- endfor %}
{{- " </tools><|im_end|>\\n" }}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- '\\n<tool_call>\\n' }}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '{"name": "' ~ tool_call.name ~ '", "arguments": ' ~ (tool_call.arguments | tojson) ~ '}' }}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>tool\\n' }}
        {%- endif %}
        {{- '<tool_response>\\n' ~ message.content|default("none", true) ~ '\\n</tool_response>' }}
        {%- if loop.last %}{{- '<|im_end|>' }}{%- elif loop.nextitem.role != "tool" %}{{- '<|im_end|>' }}{%- endif %}
    {%- endif %}
{%- endfor %}
""",
    "command": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set loop_messages = messages[1:] -%}{%- set system_message = messages[0]['content'] -%}
{%- else -%}{%- set loop_messages = messages -%}{%- set system_message = false -%}{%- endif -%}
{%- macro document_turn(documents) -%}
{# a comment #}
<|START_OF_TURN_TOKEN|><results>
{%- for doc in documents %}

Document: {{ loop.index0 }}
{%- for key, value in doc.items() %}

{{ key|title }}: {{ value }}
{%- endfor %}
{%- endfor %}
</results>
{%- endmacro -%}
{%- macro no_args() %}<{{ varargs|length }}{{ kwargs|length }}>{% endmacro -%}
{% if system_message != false %}{{ '<|SYSTEM_TOKEN|>' + system_message|string }}{% endif %}
{%- for message in loop_messages -%}
{%- set content = message['content'] -%}
{%- if message['role']|lower == 'user' %}
{{ '<|USER_TOKEN|>' + (content|string).strip() + '<|END|>' }}
{%- elif message.role|upper == 'ASSISTANT' %}
{{ '<|CHATBOT_TOKEN|>' ~ content ~ '<|END|>' }}
{%- endif %}
{%- endfor -%}
{%- if documents %}{{ document_turn(documents) }}{% endif -%}
{{ no_args(1, 2, a=3) }}
{%- if add_generation_prompt %}{{ '<|CHATBOT_TOKEN|>' }}{% endif %}""",
    "phi": """{% for message in messages if message.role != 'developer' %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['tools'] }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% else %}nothing{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}
{%- set system_message = "Knowledge Cutoff Date: April 2024.\\nToday's Date: " + strftime_now('%B %d, %Y') + "." %}
{%- if tools and documents %}
{%- set system_message = system_message + " both." %}
{%- elif tools %}
{%- set system_message = system_message + " tools." %}
{%- endif %}
{%- set loop_messages = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' ~ system_message ~ '<|end_of_text|>\\n' }}
{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' }}
    {{- tools | tojson(indent=4) }}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- 'Document ' + loop.index0 | string + '\\n' }}
        {{- document['text'] }}
        {%- if not loop.last %}{{- '\\n\\n'}}{%- else %}{{- '<|end_of_text|>\\n' }}{%- endif %}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}{% generation %}{{ message['content'] }}{% endgeneration %}{{ '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
        {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}""",
    "functionary": """{%- macro render(spec, level=0, last=false) -%}
{{ '  ' * level if false else '' }}{% for key, v in spec|dictsort %}{{ key }}{% if v is mapping %}({{ render(v, level + 1) }}){% elif v is sequence and v is not string %}[{{ v|join(', ') }}]{% else %}={{ v|tojson }}{% endif %}{{ ';' if not loop.last }}{% endfor %}
{%- endmacro -%}
{%- macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro -%}
{% for message in messages %}{%- call wrap(message.role) -%}
{%- if message.role in ["user", "system"] -%}{{ message.content }}
{%- elif message.tool_calls -%}{%- for c in message.tool_calls -%}{%- set f = c.function or c -%}{{ f.name }}:{% if f.arguments is mapping %}{{ render(f.arguments) }}{% else %}{{ f.arguments }}{% endif %}{%- endfor -%}
{%- elif message.content is none -%}{% else -%}{{ message.content }}{%- endif -%}
{%- endcall %}{% endfor %}""",
    "harmony": """{%- macro render_type(p, is_nullable=false) -%}
    {%- if p.type == "array" -%}
        {%- if p['items'] -%}{{ render_type(p['items']) }}[]{%- else -%}any[]{%- endif -%}
    {%- elif p.enum -%}"{{ p.enum|join('" | "') }}"
    {%- elif p.type == "integer" or p.type == "number" -%}number
    {%- else -%}{{ p.type }}{%- endif -%}
{%- endmacro -%}
{%- macro render_tool(tools) -%}
    {%- for tool in tools %}
        {%- set tool = tool.function if tool.function is defined else tool %}
        {{- "// " + tool.description + "\\n" }}
        {{- "type "+ tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "_: {\\n" }}
            {%- for param_name, p in tool.parameters.properties.items() %}
                {{- param_name }}
                {%- if param_name not in (tool.parameters.required or []) %}{{- "?" }}{%- endif %}
                {{- ": " ~ render_type(p) }}
                {%- if p.default is defined %}
                    {%- if p.enum %}{{- ", // default: " + p.default|string }}{%- else %}{{- ", // default: " + p.default|tojson }}{%- endif %}
                {%- endif %}
                {{- "\\n" if loop.last else ",\\n" }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else %}{{- ") => any;\\n\\n" }}{%- endif %}
    {%- endfor %}
{%- endmacro -%}
{%- macro system_message() -%}
Current date: {{ strftime_now("%Y-%m-%d") }}
{%- set valid = ["analysis", "commentary", "final"] %}
# Valid channels: {{ valid | join(", ") }}. Reasoning: {{ reasoning_effort|default("medium") }}
{%- endmacro -%}
<|start|>system<|message|>{{ system_message() }}<|end|>
{%- if tools %}{{ render_tool(tools) }}{% endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "thinking" in message -%}{{ raise_exception("no") }}{%- endif -%}
        {%- if "tool_calls" in message -%}
            {%- set future = namespace(found=false) %}
            {%- for f in messages[loop.index:] -%}
                {%- if f.role == "assistant" and "tool_calls" not in f -%}{%- set future.found = true %}{%- endif -%}
                {%- if loop.index > 3 %}{% break %}{% endif -%}
            {%- endfor -%}
            {%- for c in message.tool_calls %}{%- set c = c.function or c %}{%- set last_tool_call.name = c.name %}
            {{- "<|start|>assistant to=functions." ~ c.name ~ "<|message|>" ~ c.arguments|tojson ~ "<|call|>" ~ future.found|tojson }}{% endfor -%}
        {%- else -%}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>{%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("a tool message without a call before it") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}{{ "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- else %}{% continue %}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
}

SNIPPETS = """
{{ messages[0].content[::-1] }} {{ messages[0].content[-1] }} {{ messages[0].content[1:4] }} {{ messages[0].content[::2] }} {{ messages[0].content[7:2:-2] }}
{{ messages[0].content|upper }} {{ messages[0].content.title() }} {{ "o'neil don't x-y (a b"|title }} {{ "o'neil 3d x_y".title() }} {{ "ÉCOLE été"|capitalize }}
{{ messages[0].content|length }} {{ [1, 2]|length }} {{ nothing|length }} {{ {}|length }}
{{ messages[1].items is callable }}
{{ messages[1]['items'] }} {{ messages[1].items() | list }}
{{ messages[1].nothing }}|{{ messages[1].nothing is defined }}|{{ messages[1].content }}|{{ messages[1].content is none }}
{{ messages[1].nothing.deeper }}
{{ nothing.x }}
{{ nothing }}{{ nothing|default('d') }}{{ ''|default('e', true) }}{{ none|default('f') }}{{ false|d('g', boolean=true) }}
{{ none }} {{ true }} {{ false }} {{ 1.0 }} {{ 1e20 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ -0.5 }} {{ 10 / 4 }} {{ 10 / 5 }}
{{ big }} {{ big|tojson }} {{ f }} {{ f|tojson }} {{ pi }} {{ big == 18446744073709551616.0 }}
{{ nested }} {{ nested|tojson }} {{ nested|tojson(indent=2) }} {{ nested|tojson(sort_keys=true, separators=(',', ':')) }} {{ nested|string }}
{{ nested|tojson(indent=0) }}
{{ [1, "a", 'b"c', "d'e", "f'g\\"h", none, 2.5, (1,), (1, 2), ()] }} {{ "é\\n\\t\\x07\\u200b😀" }} {{ ["é\\n\\t\\x07\\u200b😀\\\\"] }}
{{ "é\\x7f😀/<>&'" | tojson }} {{ "é\\x7f😀/<>&'" | tojson(ensure_ascii=true) }}
{{ "a<b>&'\\"" | e }}
{{ "x" ~ 1 ~ none ~ true ~ [1] ~ 2.0 ~ nothing }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 % 2 }} {{ -7.5 // 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 1 + 2 * 3 - 4 }}
{{ "ab" * 3 }} {{ 2 * "x" }} {{ [1] + [2] }}
{{ "a" + 1 }}
{{ "a" + none }}
{{ "a" + nothing }}
{{ 1 / 0 }}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ "1" == 1 }} {{ none == false }} {{ "a" < "b" }} {{ [1, 2] == [1, 2] }} {{ {"a": 1} == {"a": 1} }} {{ (1, 2) == [1, 2] }}
{{ 1 < "a" }}
{{ "ell" in "Hello" }} {{ "x" not in "Hello" }} {{ 1 in [1, 2] }} {{ "a" in {"a": 1} }} {{ "a" in nothing }} {{ 3 not in (1, 2) }}
{{ 1 in "1" }}
{{ "a" in none }}
{{ not true and false or true }} {{ not (1 == 2) }} {{ 0 or "x" }} {{ "" and 1 }} {{ [] or {} or 0 }}
{{ "a" if false }}|{{ "a" if true else "b" }}|{{ "a" if false else "b" if false else "c" }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ "a" is in ["a"] }} {{ 1 is sameas 1 }} {{ "A" is upper }} {{ "a" is lower }} {{ "1" is upper }} {{ 1 is eq 1 }} {{ 2 is gt(1) }} {{ 1 is not ne 1 }}
{{ 1 is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is boolean }} {{ true is integer }} {{ true is number }} {{ "" is string }} {{ {} is mapping }} {{ [] is sequence }} {{ {} is iterable }} {{ nothing is iterable }} {{ none is iterable }} {{ range is callable }} {{ 1 is callable }}
{{ "x" is filter }} {{ "trim" is filter }} {{ "odd" is test }}
{{ "  a b  "|trim }}| {{ "xxaxx".strip("x") }} {{ "xyaxy".lstrip("yx") }} {{ "abc\\n\\n ".rstrip("\\n") }}| {{ "\\x1c a\\ufeff"|trim }}|
{{ "a,b,,c".split(",") }} {{ " a  b c ".split() }} {{ "a,b,c".split(",", 1) }} {{ " a b  c ".split(none, 1) }} {{ "a,b,c".rsplit(",", 1) }} {{ "".split() }} {{ "".split(",") }} {{ "a\\nb\\r\\nc\\n".splitlines() }}
{{ "a".split("") }}
{{ "aXbXc".replace("X", "--") }} {{ "aaa".replace("a", "b", 2) }} {{ "abc".replace("", "-") }} {{ "aaa"|replace("a", "b") }} {{ "é".replace("", "-") }}
{{ "abc".startswith("ab") }} {{ "abc".endswith(("x", "c")) }} {{ "abc".find("c") }} {{ "éabc".find("b") }} {{ "abc".find("x") }} {{ "abab".rfind("ab") }} {{ "aaaa".count("aa") }} {{ "12".isdigit() }} {{ "a1".isalnum() }} {{ "ab".isalpha() }} {{ " ".isspace() }} {{ "".isdigit() }}
{{ "abc".removeprefix("a") }} {{ "abc".removesuffix("c") }} {{ "k=v=w".partition("=") }} {{ "-".join(["a", "b"]) }} {{ ",".join("ab") }} {{ "ß straße"|upper }} {{ "ÀÉ".lower() }}
{{ ",".join([1]) }}
{{ [3, 1, 2]|sort }} {{ ["b", "A", "c"]|sort }} {{ ["b", "A"]|sort(case_sensitive=true) }} {{ [1, 2, 3]|sort(reverse=true) }} {{ [{"a": 2}, {"a": 1}]|sort(attribute="a") }}
{{ [1, "a"]|sort }}
{{ {"b": 1, "A": 2, "c": 0}|dictsort }} {{ {"b": 1, "A": 2}|dictsort(true) }} {{ {"b": 1, "a": 2}|dictsort(by="value", reverse=true) }}
{{ ["a", "A", "b", 1, 1.0]|unique|list }} {{ [1, 2, 3]|sum }} {{ [{"a": 1}, {"a": 2}]|sum(attribute="a") }} {{ [3, 1]|min }} {{ [3, 1]|max }} {{ ["b", "C"]|max }}
{{ [1, 2]|first }} {{ [1, 2]|last }} {{ []|first }}| {{ "abc"|first }} {{ "abc"|reverse }} {{ [1, 2]|reverse|list }} {{ "abc"|list }} {{ {"a": 1}|list }}
{{ [{"a": {"b": 1}}, {"a": {}}]|map(attribute="a.b")|list }} {{ [{"a": 1}, {}]|map(attribute="a", default="d")|list }} {{ ["a", "b"]|map("upper")|join("+") }} {{ [" a "]|map("trim")|list }} {{ ["a"]|map("replace", "a", "z")|list }}
{{ [1, 2, 3]|select("odd")|list }} {{ [1, 2, 3]|reject("gt", 1)|list }} {{ [0, 1, ""]|select|list }} {{ [{"a": 1}, {"b": 2}]|selectattr("a")|list }} {{ [{"a": 1}, {"a": 2}]|selectattr("a", "equalto", 2)|list }} {{ [{"a": 1}, {}]|rejectattr("a", "defined")|list }}
{{ [1, none, "a"]|join("-") }} {{ [{"a": 1}]|join(attribute="a") }} {{ "abc"|join(".") }}
{{ "42"|int }} {{ "4.7"|int }} {{ "x"|int }} {{ "x"|int(7) }} {{ "1.5"|float }} {{ 3.99|int }} {{ -3.99|int }} {{ true|int }} {{ none|int }} {{ "7x"|int }} {{ -5|abs }} {{ 2.5|round }} {{ 2.345|round(2) }} {{ 2.1|round(method="ceil") }}
{{ "a\\nb\\n\\nc"|indent }} {{ "a\\nb"|indent(2, true) }} {{ "a\\n\\nb"|indent(width=1, blank=true) }} {{ "a\\nb"|indent("> ") }} {{ "a b c"|wordcount }}
{{ none|trim }} {{ 5|trim }} {{ [1]|upper }} {{ nothing|trim }}|
{{ {"a": 1}.get("a") }} {{ {"a": 1}.get("b") }} {{ {"a": 1}.get("b", 2) }} {{ {"a": 1}.keys()|list }} {{ {"a": 1}.values()|list }} {{ {"a": 1}.items()|list }} {{ {"a": 1}|items|list }} {{ nothing|items|list }}
{{ [1].append(2) }}
{{ {"a": 1}.pop("a") }}
{{ [1, 2].index(2) }} {{ [1, 1].count(1) }}
{{ range(3)|list }} {{ range(1, 7, 2)|list }} {{ range(3, 0, -1)|list }} {{ dict(a=1, b=2) }} {{ dict({"a": 1}, b=2) }}
{{ range(1000000)|list|length }}
{{ namespace(a=1).a }} {% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }} {{ ns['x'] }} {{ ns.y is defined }}
{% set d = {} %}{% set d.x = 1 %}{{ d }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}
{% set a, b = [1] %}
{% set x %} block {{ 1 + 1 }} {% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}
{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle("a", "b") }}{{ loop.changed(i // 2) }} {% endfor %}
{% for i in [1, 2, 3, 4] if i is odd %}{{ i }}{{ loop.last }}{% else %}none{% endfor %}{% for i in [] %}{% else %}none{% endfor %}{% for c in "añ" %}[{{ c }}]{% endfor %}{% for k in {"a": 1} %}{{ k }}{% endfor %}{% for x in nothing %}{% else %}empty{% endfor %}
{% for i in none %}{% endfor %}
{% for i in 5 %}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% for k, v in {"x": 1}.items() %}{{ k }}={{ v }}{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}@{{ loop.depth0 }}{% endif %}{% endfor %}
{% for a in [1, 2] %}{% for b in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}{{ m(1)|upper }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}{{ m() }}
{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% for x in [7] %}{{ m() }}{% endfor %}
{% macro fact(n) %}{{ n if n < 2 else n ~ "*" ~ fact(n - 1) }}{% endmacro %}{{ fact(5) }}
{% macro w(t) %}<{{ t }}>{{ caller(1) }}</{{ t }}>{% endmacro %}{% call(x) w("a") %}in {{ x }}{% endcall %}
{% macro w() %}{{ caller is defined }}{% endmacro %}{{ w() }}{% call w() %}{% endcall %}
{% filter upper|replace("A", "b") %}a{{ "c" }}{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% raw %}{{ not }} {% this %}{% endraw %}|{%- raw -%} x {%- endraw -%} |
{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}{% if 0 %}a{% elif "" %}b{% else %}c{% endif %}
a   {%- if true -%}   b   {%- endif -%}   c  {{- "d" -}}  e {#- x -#} f
{{ "a" "b" 'c' }} {{ 'it\\'s' }} {{ "\\x41\\u00e9\\U0001F600\\101\\q" }} {{ 1_000 }} {{ 1.5e3 }}
{{ [1, 2, 3][-1] }} {{ [1, 2, 3][5] }}| {{ [1, 2, 3][1:] }} {{ [1, 2, 3][::-1] }} {{ (1, 2)[0] }} {{ {"a": {"b": 1}}["a"].b }} {{ [[1, 2]][0][1] }} {{ "abc"[1] }} {{ [1, 2].0 }}
{{ messages[1].content[1:] }}
{{ d.keys() }} {{ nested.keys() }} {{ nested.items()|first }} {{ nested.values()|length }} {{ nested.keys()[0] }}|{{ nested.items()|tojson }}
{% if [] | select %}yes{% endif %}{% set x = [1, 2]|select %}{% for i in x %}{{ i }}{% endfor %}{% for i in x %}{{ i }}{% endfor %}
{{ [1]|select|length }}
{{ nested.keys() }} {{ nested.values()|list|length }} {{ "b" in nested.keys() }} {{ nested.items() is sequence }}
{{ none|map('upper')|list }} {{ none|selectattr('x')|list }} {{ [0] * 3 }} {{ 5|round }} {{ true|round }}
{{ nothing() }}
{{ nothing[0] }}
{{ (1).foo }}|{{ "a".foo }}|{{ none.foo }}
{{ raise_exception("it is " ~ 1) }}
{{ strftime_now("%Y-%m-%d %H:%M %B %b %A %j %%") }}
{{ true and none }}|{{ 1 if nothing else 2 }}|{{ nothing == none }}|{{ nothing != nothing }}
{{ "%s"|length }} {{ {"a": 1, "a": 2} }} {{ {"a": [1, {"b": none}]}|tojson }}
{{ nothing|tojson }}
{{ 1, 2 }} {{ (1) }} {{ () }} {{ [] }} {{ {} }} {{ [[], {}]|tojson(indent=1) }} {{ -(-3) }} {{ +3 }} {{ - 3 + 5 }}
{{ messages is defined }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ bos_token is defined }}
{% generation %}x{% endgeneration %}
{% set q = [] %}{% for m in messages %}{% set q = q + [m.role] %}{% endfor %}{{ q }}
{{ messages|map(attribute='role')|join(',') }} {{ messages|selectattr('role', 'in', ['user'])|list|length }} {{ (messages|last).role }}
{{ 5 is nonsense }}
{% include "x" %}
{% for %}{% endfor %}
{{ 1 +
{{ "open }}
{% if x %}
{% endif %}
{% break %}
{{ a b }}
{# open
""".strip().split("\n")
