/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/text/template/template.h"

static struct json_val json_parsed(const char *text)
{
	struct json_val v = {JSON_NULL, {NULL, 0}};
	if (text != NULL)
		assert_true(cgn_ok(json_parse(cgn_str_of(text), &v, NULL, NULL)));
	return v;
}

static struct cgn_err err;

/* Compile a block of exactly |n| bytes, so that a sanitizer sees reads beyond its ends. */
static cgn_rc compile_exact(const char *source, size_t n, struct template **t)
{
	char *exact = memcpy(malloc(n + (n == 0)), source, n);
	err = (struct cgn_err){0};
	cgn_rc rc = template_compile((struct cgn_str){exact, n}, t, &err);
	free(exact);
	return rc;
}

static cgn_rc render_as(const char *source, const struct template_ask *ask, struct cgn_buf *out)
{
	struct template *t = NULL;
	cgn_rc rc = compile_exact(source, strlen(source), &t);
	if (cgn_ok(rc))
		rc = template_render(t, ask, out, &err);
	template_free(&t);
	return rc;
}

static void expect_text(const char *source, const struct template_ask *ask, const char *text)
{
	struct cgn_buf out = {0};
	cgn_buf_putz(&out, "before ");
	cgn_rc rc = render_as(source, ask, &out);
	if (!cgn_ok(rc))
		fail_msg("%s: %s", source, err.msg);
	if (strcmp(cgn_buf_z(&out) + 7, text) != 0)
		fail_msg("%s\n  gave  %s\n  not   %s", source, cgn_buf_z(&out) + 7, text);
	cgn_buf_fini(&out);
}

static void expect_failure(const char *source, const struct template_ask *ask, enum cgn_code code,
	const char *what)
{
	struct cgn_buf out = {0};
	cgn_buf_putz(&out, "before");
	cgn_rc rc = render_as(source, ask, &out);
	if (rc.code != code || strstr(err.msg, what) == NULL)
		fail_msg("%s\n  gave  %s %s\n  not   %s %s", source, cgn_code_name(rc.code), err.msg,
			cgn_code_name(code), what);
	assert_string_equal(cgn_buf_z(&out), "before"); /* Unchanged. */
	cgn_buf_fini(&out);
}

static struct template_ask sample_ask(void)
{
	return (struct template_ask){
		.messages = json_parsed(
			"[{\"role\":\"system\",\"content\":\"be \\u00fcseful\\n\"},{\"role\":\"user\",\"content\":\" hi \"},"
			"{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,\"\\u20ac\\\"\"],\"y\":{}}}}]}]"),
		.kwargs = json_parsed(
			"{\"n\":3,\"thinking\":false,\"d\":{\"a\":1,\"a\":2,\"items\":7},\"big\":123456789012345678901234567890}"),
		.bos_token = CGN_STR("<s>"),
	};
}

struct row {
	const char *source, *text;
};

static void run_rows(const struct row *rows, size_t n)
{
	struct template_ask ask = sample_ask();
	for (size_t i = 0; i < n; i++)
		expect_text(rows[i].source, &ask, rows[i].text);
}

static void white_space_goes_where_tags_say(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"", ""},
		{"plain\n", "plain"},
		{"plain\r\n\r\n", "plain\n"},
		{"a\n  {% if 1 %}\nb\n  {% endif %}\nc", "a\nb\nc"},
		{"a\n  {%+ if 1 %}\nb{% endif +%}\nc", "a\n  b\nc"},
		{"a \n\t {%- if 1 -%} \n b \n {%- endif -%} \n c", "abc"},
		{"a\n  {{ 1 }}\n  {{- 2 -}}\n b", "a\n  12b"},
		{"a {# c #}\n{#- d -#} \n b", "a b"},
		{"  {# c #}\nx", "x"},
		{"a {% if 1 %} b", NULL},
		{"{% raw %}\n{{ x }}{% if %}{% endraw %}\ny", "\n{{ x }}{% if %}y"},
		{"a {%- raw -%}  {{ x }} {%- endraw -%}  b", "a{{ x }}b"},
		{"{ { {a} %} }} #}", "{ { {a} %} }} #}"},
		{"{{ '}}' ~ \"%}\" }}", "}}%}"},
		{"{{ {'a': {'b': 1}}.a.b }}", "1"},
	};
	struct template_ask ask = sample_ask();
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].text != NULL)
			expect_text(rows[i].source, &ask, rows[i].text);
		else
			expect_failure(rows[i].source, &ask, CGN_INVALID, "endif is missing");
}

static void expressions_are_pythons(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{{ 1 + 2 * 3 ** 2 - 4 // 3 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}", "18-423.5"},
		{"{{ 'a' + 'b' ~ 1 + 'c' }}{{ 'a' 'b' }}{{ 'ab' * 2 }}", "ab1cababab"},
		{"{{ '\\x41\\u00e9\\U0001F600\\ud83d\\ude00\\101\\q\\'' }}",
			"A\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80"
			"A\\q'"},
		{"{{ none }} {{ True }} {{ [1, 'a', none, (1,), {'k': 2.0}] }}",
			"None True [1, 'a', None, (1,), {'k': 2.0}]"},
		{"{{ 1 < 2 < 3 and not 3 < 2 < 1 }} {{ 1 == 1.0 == true }} {{ 'b' > 'a' }}",
			"True True True"},
		{"{{ 1 in [1] }} {{ 'x' not in 'abc' }} {{ 'a' in d }} {{ 1 in nothing }}",
			"True True True False"},
		{"{{ 'a' if n == 3 else 'b' }}{{ 'c' if false }}{{ nothing }}{{ n is defined and nothing is not defined }}",
			"aTrue"},
		{"{{ [1,2,3][-1] }}{{ [1,2,3][::-1] }}{{ 'h\xc3\xa9llo'[1:3] }}{{ 'abc'[5] }}{{ [1, 2].1 }}",
			"3[3, 2, 1]\xc3\xa9l2"},
		{"{{ 'abc'[9223372036854775807] }}{{ [1,2][9223372036854775807] }}{{ [1,2,3][1::9223372036854775807] }}{{ 'abc'[1::9223372036854775807] }}"
		 "{{ [1,2,3][::-9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}{{ [1,2,3][::2] }}{{ 'abcd'[::-2] }}",
			"[2]b[3]c[1, 3]db"},
		{"{{ messages[1].content|trim }}|{{ messages[1]['content'] }}|{{ messages[0].content }}",
			"hi| hi |be \xc3\xbcseful\n"},
		{"{{ d.a }}{{ d['items'] }}{{ d.items()|list }}{{ d.get('zz', 4) }}",
			"27[('a', 2), ('items', 7)]4"},
		{"{{ big }} {{ big|tojson }} {{ 1e16 }} {{ 1e15 }} {{ 0.00001 }}",
			"123456789012345678901234567890 123456789012345678901234567890 1e+16 1000000000000000.0 1e-05"},
		{"{{ messages[2].tool_calls[0].function.arguments|tojson }}",
			"{\"x\": [1, 2.5, \"\xe2\x82\xac\\\"\"], \"y\": {}}"},
		{"{{ messages[2].tool_calls[0].function.arguments|tojson(indent=1, ensure_ascii=true, sort_keys=true) }}",
			"{\n \"x\": [\n  1,\n  2.5,\n  \"\\u20ac\\\"\"\n ],\n \"y\": {}\n}"},
		{"{{ [1, 2]|tojson(separators=(',', ':')) }}{{ '\\x7f\\x01'|tojson }}",
			"[1,2]\"\x7f\\u0001\""},
		{"{{ 'xxaxx'.strip('x') }}{{ 'a-b'.split('-') }}{{ ' a  b '.split() }}{{ 'a'.upper() }}",
			"a['a', 'b']['a', 'b']A"},
		{"{{ [3, 1, 2]|sort|join('-') }} {{ messages|map(attribute='role')|list }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
			"1-2-3 ['system', 'user', 'assistant'] 1"},
		{"{{ 'it\\'s' }} {{ [\"it's\", 'a\"'] }}", "it's [\"it's\", 'a\"']"},
		{"{{ strftime_now('%Y-%m-%d') }}", "1970-01-01"},
		{"{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}{{ add_generation_prompt }}{{ thinking is false }}",
			"<s>FalseTrueFalseTrue"},
		{"{{ d.keys() }}{{ d.values()|list }}{{ d.keys()[0] }}{{ 'yes' if []|select }}{% set g = [1, 2]|select %}{{ g|first }}{{ g|list }}{{ g|list }}",
			"dict_keys(['a', 'items'])[2, 7]yes1[2][]"},
		{"{{ none|map('upper')|list }}{{ [0] * 2 }}{{ 2.5 is odd }}{{ -7 is odd }}{{ 'a b-c_d'|wordcount }}{{ 5|round }}{{ 2.5|round }}",
			"[][0, 0]FalseTrue352.0"},
		{"{{ range(3)|list }}{{ dict(a=1).a }}{{ 9 is divisibleby 3 }}{{ 'x'|default('y') }}{{ nothing|default('y') }}",
			"[0, 1, 2]1Truexy"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void statements_do_what_they_say(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{% if 0 %}a{% elif n %}b{% else %}c{% endif %}{% if '' %}{% elif [] %}{% else %}d{% endif %}",
			"bd"},
		{"{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ m.role }}{{ ', ' if not loop.last }}{% endfor %}",
			"1/3system, 2/3user, 3/3assistant"},
		{"{% for i in [1,2,3,4] if i is odd %}{{ i }}{{ loop.revindex }}{% else %}no{% endfor %}{% for i in [] %}{% else %}no{% endfor %}",
			"1231no"},
		{"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"},
		{"{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
			"023"},
		{"{% for i in [1,[2,[3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}",
			"123"},
		{"{% for i in [1,1,2] %}{{ loop.cycle('a','b') }}{{ loop.changed(i) }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
			"aTrue1 bFalse12 aTrue1 "},
		{"{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = 9 %}{% endfor %}{{ x }}", "111"},
		{"{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
			"4"},
		{"{% set a, (b) = 1, 2 %}", NULL},
		{"{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set x %}t{{ a }}{% endset %}[{{ x }}]{% set y|upper %}q{% endset %}{{ y }}",
			"12[t1]Q"},
		{"{% macro m(a, b='x', c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(2, c=3) }}{{ m('y')|upper }}",
			"1x12x3YXY"},
		{"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, z=2) }}", "(1,){'z': 2}"},
		{"{% macro w(t) %}<{{ t }}>{{ caller(t) }}{% endmacro %}{% call(x) w('a') %}in {{ x }}{% endcall %}",
			"<a>in a"},
		{"{% macro f(n) %}{{ n }}{{ f(n - 1) if n else '' }}{% endmacro %}{{ f(3) }}", "3210"},
		{"{% filter upper|replace('A', 'z') %}a{{ 'b' }}{% endfilter %}{% with q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
			"zB1False"},
		{"{% generation %}x{% endgeneration %}", "x"},
		{"{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.role + ' ' %}{% endfor %}{{ ns.s }}",
			"system user assistant "},
	};
	struct template_ask ask = sample_ask();
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].text != NULL)
			expect_text(rows[i].source, &ask, rows[i].text);
		else
			expect_failure(rows[i].source, &ask, CGN_INVALID, "expected %}");
}

/* The texts are those of Jinja 3.1.6. */
static void methods_of_strings_are_pythons(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{{ 'a-b-c'.split('-', 1) }}{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a-b-c'.rsplit('-', 9) }}{{ 'a-b'.rsplit('-') }}{{ 'abc'.rsplit('-', 1) }}",
			"['a', 'b-c']['a-b', 'c']['a', 'b', 'c']['a', 'b']['abc']"},
		{"{{ 'a--b--c'.rsplit('--', 1) }}{{ 'a-b-c'.rsplit('-', 0) }}{{ 'a-b-c'.split('-', 0) }}{{ 'a-b-c'.split('-', maxsplit=1) }}",
			"['a--b', 'c']['a-b-c']['a-b-c']['a', 'b-c']"},
		{"{{ ' a  b c '.split(none, 1) }}{{ ' a '.split(none, 0) }}{{ ''.split() }}{{ ''.split('x') }}{{ 'a b'.rsplit() }}",
			"['a', 'b c ']['a '][]['']['a', 'b']"},
		{"{{ 'a\\nb\\r\\nc\\rd\\n'.splitlines() }}{{ ''.splitlines() }}{{ '\\n\\n'.splitlines() }}{{ 'ab'.splitlines() }}",
			"['a', 'b', 'c', 'd'][]['', '']['ab']"},
		{"{{ 'abc'.startswith('ab') }}{{ 'abc'.startswith('b') }}{{ 'abc'.endswith('bc') }}{{ 'abc'.endswith('abcd') }}{{ 'abc'.startswith('') }}",
			"TrueFalseTrueFalseTrue"},
		{"{{ 'abc'.startswith(('x', 'ab')) }}{{ 'abc'.endswith(('x', 'y')) }}{{ 'abc'.endswith(()) }}",
			"TrueFalseFalse"},
		{"{{ 'aB c'.upper() }}{{ 'aB C'.lower() }}{{ 'aB cD'.title() }}{{ 'aB C'.capitalize() }}{{ ''.capitalize() }}",
			"AB Cab cAb CdAb c"},
		{"{{ 'aXbXc'.replace('X', '--') }}{{ 'aXbXc'.replace('X', '-', 1) }}{{ 'abc'.replace('', '.') }}{{ 'abc'.replace('z', '.') }}",
			"a--b--ca-bXc.a.b.c.abc"},
		{"{{ ', '.join(['a', 'b', 'c']) }}|{{ ', '.join([]) }}|{{ ''.join('xy') }}", "a, b, c||xy"},
		{"{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'abc'.find('x') }}{{ 'abc'.rfind('x') }}{{ 'h\xc3\xa9l'.find('l') }}",
			"25-1-12"},
		{"{{ 'banana'.count('an') }}{{ 'banana'.count('ana') }}{{ 'ab'.count('') }}{{ 'ab'.count('x') }}",
			"2130"},
		{"{{ '12'.isdigit() }}{{ '1a'.isdigit() }}{{ ''.isdigit() }}{{ ' \\t'.isspace() }}{{ ' a'.isspace() }}{{ ''.isspace() }}",
			"TrueFalseFalseTrueFalseFalse"},
		{"{{ 'ab\xc3\xa9'.isalpha() }}{{ 'a1'.isalpha() }}{{ ''.isalpha() }}{{ 'a1'.isalnum() }}{{ 'a-'.isalnum() }}{{ ''.isalnum() }}",
			"TrueFalseFalseTrueFalseFalse"},
		{"{{ 'abc'.removeprefix('ab') }}{{ 'abc'.removeprefix('b') }}{{ 'abc'.removesuffix('bc') }}{{ 'abc'.removesuffix('') }}{{ 'abc'.removesuffix('x') }}",
			"cabcaabcabc"},
		{"{{ 'a=b=c'.partition('=') }}{{ 'abc'.partition('=') }}",
			"('a', '=', 'b=c')('abc', '', '')"},
		{"{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xyaxy'.lstrip('yx') }}|{{ 'xyaxy'.rstrip('xy') }}|{{ 'xaay'.strip('yx') }}",
			"a | a|axy|xya|aa"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void methods_of_lists_and_dictionaries_are_pythons(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{{ [1, 2, 1].count(1) }}{{ [1, 2, 3].index(3) }}{{ [1, 2].copy() }}{{ {'a': 1}.copy() }}",
			"22[1, 2]{'a': 1}"},
		{"{{ d.get('a') }}{{ d.get('q') }}{{ d.get('q', 'z') }}{{ d.values() }}{{ d.items() }}",
			"2Nonezdict_values([2, 7])dict_items([('a', 2), ('items', 7)])"},
		{"{% for k in d %}{{ k }},{% endfor %}{% for k in d.keys() %}{{ k }};{% endfor %}{% for v in d.values() %}{{ v }};{% endfor %}",
			"a,items,a;items;2;7;"},
		{"{{ d|length }}{{ d|list }}{{ d|first }}{{ d|last }}{{ 'a' in d.keys() }}{{ 2 in d.values() }}",
			"2['a', 'items']aitemsTrueTrue"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void filters_are_jinjas(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{{ ' a '|trim }}|{{ 'xax'|trim('x') }}|{{ 'aBc'|upper }}{{ 'ABc'|lower }}{{ 'aB cD-eF'|title }}{{ 'aBC'|capitalize }}",
			"a|a|ABCabcAb Cd-EfAbc"},
		{"{{ '<a href=\"x\">&\\'</a>'|escape }}{{ '<'|e }}{{ '<b>'|safe }}{{ 12|string ~ 'x' }}{{ 1.5|string }}",
			"&lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt;&lt;<b>12x1.5"},
		{"{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2) }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(1, false, true) }}|{{ 'a\\nb'|indent('>>') }}",
			"a\n    b\n\n    c|a\n  b|  a\n  b|a\n \n b|a\n>>b"},
		{"{{ '42'|int }}{{ 'x'|int }}{{ 'x'|int(7) }}{{ 3.9|int }}{{ -3.9|int }}{{ true|int }}{{ '7.6'|int }}",
			"42073-317"},
		{"{{ '4.5'|float }}{{ 'x'|float }}{{ 'x'|float(1.5) }}{{ 3|float }}", "4.50.01.53.0"},
		{"{{ -3|abs }}{{ (-3)|abs }}{{ (-2.5)|abs }}{{ 3|abs }}", "332.53"},
		{"{{ 2.567|round(2) }}{{ 2.4|round }}{{ 2.6|round }}{{ 2.1|round(0, 'ceil') }}{{ 2.9|round(0, 'floor') }}{{ 1234|round(-2) }}",
			"2.572.03.03.02.01200"},
		{"{{ [1, 2, 3]|first }}{{ [1, 2, 3]|last }}{{ []|first is defined }}{{ []|last is defined }}{{ 'abc'|first }}{{ 'abc'|last }}",
			"13FalseFalseac"},
		{"{{ 'abc'|reverse }}{{ [1, 2, 3]|reverse|list }}{{ []|reverse|list }}", "cba[3, 2, 1][]"},
		{"{{ [3, 1, 2]|min }}{{ [3, 1, 2]|max }}{{ ['b', 'A']|min }}{{ ['b', 'A']|max }}{{ ['b', 'A']|min(case_sensitive=true) }}{{ []|min is defined }}",
			"13AbAFalse"},
		{"{{ [{'k': 2}, {'k': 1}]|min(attribute='k') }}{{ [{'k': 2}, {'k': 1}]|max(attribute='k') }}",
			"{'k': 1}{'k': 2}"},
		{"{{ [1, 2, 3]|sum }}{{ [1, 2]|sum(start=10) }}{{ []|sum }}{{ [{'k': 2}, {'k': 5}]|sum(attribute='k') }}{{ [1, 0.5]|sum }}",
			"613071.5"},
		{"{{ [1, 2, 1, 3, 2]|unique|list }}{{ ['a', 'A', 'b']|unique|list }}{{ ['a', 'A']|unique(case_sensitive=true)|list }}{{ [{'k': 1}, {'k': 1}]|unique(attribute='k')|list }}",
			"[1, 2, 3]['a', 'b']['a', 'A'][{'k': 1}]"},
		{"{{ {'b': 1, 'a': 2}|dictsort }}{{ {'b': 1, 'a': 2}|dictsort(by='value') }}{{ {'b': 1, 'a': 2}|dictsort(reverse=true) }}{{ {'B': 1, 'a': 2}|dictsort }}{{ {'a': 2, 'B': 1}|dictsort(true) }}",
			"[('a', 2), ('b', 1)][('b', 1), ('a', 2)][('b', 1), ('a', 2)][('a', 2), ('B', 1)][('B', 1), ('a', 2)]"},
		{"{{ [3, 1, 2]|sort }}{{ [3, 1, 2]|sort(reverse=true) }}{{ ['b', 'A', 'c']|sort }}{{ ['b', 'A', 'c']|sort(case_sensitive=true) }}{{ [{'k': 2}, {'k': 1}]|sort(attribute='k') }}",
			"[1, 2, 3][3, 2, 1]['A', 'b', 'c']['A', 'b', 'c'][{'k': 1}, {'k': 2}]"},
		{"{{ d|items|list }}{{ nothing|items|list }}{{ [1, 2]|join }}{{ [1, 2]|join(', ') }}{{ [{'k': 'x'}, {'k': 'y'}]|join('+', attribute='k') }}",
			"[('a', 2), ('items', 7)][]121, 2x+y"},
		{"{{ nothing|default('x') }}{{ ''|default('x') }}{{ ''|default('x', true) }}{{ false|d('x', boolean=true) }}{{ nothing|d }}|{{ 0|d('x') }}",
			"xxx|0"},
		{"{{ ['a', 'b']|map('upper')|list }}{{ [{'k': 1}, {}]|map(attribute='k', default=9)|list }}{{ [{'k': {'j': 1}}]|map(attribute='k.j')|list }}{{ [1.6, 2.2]|map('round')|list }}",
			"['A', 'B'][1, 9][1][2.0, 2.0]"},
		{"{{ [1, 2, 3, 4]|select('odd')|list }}{{ [1, 2, 3, 4]|reject('odd')|list }}{{ [0, 1, '']|select|list }}{{ [0, 1, '']|reject|list }}{{ [1, 5]|select('gt', 2)|list }}",
			"[1, 3][2, 4][1][0, ''][5]"},
		{"{{ [{'k': 1}, {'k': 2}, {}]|selectattr('k')|list }}{{ [{'k': 1}, {'k': 0}]|rejectattr('k')|list }}{{ [{'k': 1}, {'k': 2}]|rejectattr('k', 'eq', 1)|list }}{{ [{'k': 1}, {}]|selectattr('k', 'defined')|list }}",
			"[{'k': 1}, {'k': 2}][{'k': 0}][{'k': 2}][{'k': 1}]"},
		{"{{ 'a b  c'|wordcount }}{{ ''|wordcount }}{{ 'h\xc3\xa9l'|length }}{{ [1, 2]|count }}{{ d|length }}{{ 'aXbX'|replace('X', 'y') }}{{ 'aXbX'|replace('X', 'y', 1) }}",
			"30322aybyaybX"},
		{"{{ {'b': [1, {'c': none}], 'a': true}|tojson }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}{{ [1, [2]]|tojson(indent=2) }}{{ '\xc3\xa9'|tojson(ensure_ascii=true) }}{{ {}|tojson(indent=2) }}",
			"{\"b\": [1, {\"c\": null}], \"a\": true}{\"a\": 2, \"b\": 1}[\n  1,\n  [\n    2\n  ]\n]\"\\u00e9\"{}"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void tests_are_jinjas(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{{ 'a' is string }}{{ 1 is string }}{{ d is mapping }}{{ [] is mapping }}{{ [] is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}",
			"TrueFalseTrueFalseTrueTrueFalse"},
		{"{{ [] is sequence }}{{ 'a' is sequence }}{{ 1 is sequence }}{{ d is sequence }}{{ 1 is number }}{{ 1.5 is number }}{{ true is number }}{{ '1' is number }}",
			"TrueTrueFalseTrueTrueTrueTrueFalse"},
		{"{{ 1 is integer }}{{ true is integer }}{{ 1.0 is integer }}{{ 1.0 is float }}{{ 1 is float }}{{ true is boolean }}{{ 1 is boolean }}",
			"TrueFalseFalseTrueFalseTrueFalse"},
		{"{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 0 is false }}{{ none is none }}{{ 0 is none }}{{ n is defined }}{{ q is undefined }}",
			"TrueFalseTrueFalseTrueFalseTrueTrue"},
		{"{{ range is callable }}{{ n is callable }}{{ 3 is odd }}{{ 4 is odd }}{{ 4 is even }}{{ 3 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby 2 }}",
			"TrueFalseTrueFalseTrueFalseTrueFalse"},
		{"{{ 1 is in [1, 2] }}{{ 3 is in [1, 2] }}{{ 'a' is in 'abc' }}{{ none is sameas none }}{{ true is sameas false }}{{ n is not none }}",
			"TrueFalseTrueTrueFalseTrue"},
		{"{{ 'AB' is upper }}{{ 'Ab' is upper }}{{ 'ab' is lower }}{{ 'aB' is lower }}{{ 'trim' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}",
			"TrueFalseTrueFalseTrueFalseTrueFalse"},
		{"{{ 1 is eq 1 }}{{ 1 is eq(2) }}{{ 1 is ne 2 }}{{ 1 is ne 1 }}{{ 1 is lt 2 }}{{ 2 is lt 2 }}{{ 2 is le 2 }}{{ 3 is le 2 }}{{ 3 is gt 2 }}{{ 2 is gt 2 }}{{ 2 is ge 2 }}{{ 1 is ge 2 }}",
			"TrueFalseTrueFalseTrueFalseTrueFalseTrueFalseTrueFalse"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void loops_say_where_they_are(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{% for i in [5, 6, 7] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
			"1032TrueFalse310;2121FalseFalse310;3210FalseTrue310;"},
		{"{% for i in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }}{{ loop.nope is defined }};{% endfor %}",
			"aTrueFalse;bTrueFalse;aFalseFalse;"},
		{"{% for i in [1] %}{% for j in [2, 3] %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
			"11121"},
		{"{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3) }}{{ m() }}{% macro k(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ k(1, b=2, c=3) }}{{ k(a=4) }}",
			"1(2, 3)()1{'b': 2, 'c': 3}4{}"},
		{"{{ range(5, 1, -2)|list }}{{ range(2, 5)|list }}{{ range(0)|list }}{{ dict(a=1, b=2) }}{{ namespace(a=1).a }}{{ namespace({'a': 2}, b=3).a }}{{ dict([('k', 5)]) }}",
			"[5, 3][2, 3, 4][]{'a': 1, 'b': 2}12{'k': 5}"},
		{"{{ 7 // 2 }}{{ 7.0 // 2 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ 7 % 4 }}{{ 7.5 % 2 }}{{ 1 / 4 }}{{ -n }}{{ +n }}{{ not n }}{{ 1 - 2.5 }}{{ 'ab' * 0 }}|{{ 3 * [1] }}",
			"33.010240.531.50.25-33False-1.5|[1, 1, 1]"},
		{"{{ [1, 2, 3, 4][1:] }}{{ [1, 2, 3, 4][:-1] }}{{ [1, 2, 3, 4][::2] }}{{ [1, 2, 3, 4][3:0:-1] }}{{ 'abcd'[-2:] }}{{ 'abcd'[::-1] }}{{ (1, 2, 3)[1:] }}{{ [1, 2][-2] }}",
			"[2, 3, 4][1, 2, 3][1, 3][4, 3, 2]cddcba(2, 3)1"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void statements_are_jinjas(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{% for (k, v) in d.items() %}{{ k }}{{ v }}{% endfor %}{% set (a, b) = (1, 2) %}{{ a }}{{ b }}{% set x, y, z = 'xyz' %}{{ z }}{{ y }}{{ x }}",
			"a2items712zyx"},
		{"{{ [{}, {'k': 1}]|selectattr('k', 'undefined')|list }}{{ [{'k': 0}, {}]|rejectattr('k')|list }}{{ [{'k': {'j': 1}}, {'k': {'j': 0}}]|selectattr('k.j')|list }}",
			"[{}][{'k': 0}, {}][{'k': {'j': 1}}]"},
		{"{% if n and not thinking or nothing %}a{% endif %}{% if not n == 3 %}b{% elif n in (1, 3) %}c{% endif %}{% if nothing is defined and nothing.x %}d{% endif %}",
			"ac"},
		{"{{ -2 ** 2 }}{{ 2 ** 3 ** 2 }}{{ 2 - 3 - 4 }}{{ 2 * 3 % 4 }}{{ 7 // 2 * 2 }}{{ (1 + 2) * 3 }}{{ 10 - 2 * 3 }}",
			"464-52694"},
		{"{{ 'a' < 'b' }}{{ [1] == [1.0] }}{{ (1,) == (1,) }}{{ {'a': 1} == {'a': 1} }}{{ {'a': 1} != {'a': 2} }}{{ 1 in {'a': 1} }}{{ 'a' in {'a': 1} }}{{ none == none }}{{ '1' == 1 }}",
			"TrueTrueTrueTrueTrueFalseTrueTrueFalse"},
		{"{{ 1 != 2 }}{{ 2 >= 2 }}{{ 2 > 2 }}{{ 1 <= 0 }}{{ 1 < 2 > 1 }}{{ 3 > 2 < 1 }}{{ 1 == 1 != 2 }}{{ true > false }}",
			"TrueTrueFalseFalseTrueFalseTrueTrue"},
		{"{{ [1] + [2] }}{{ (1,) + (2,) }}{{ 'ab'[1] }}{{ 'ab'[-1] }}{{ (1, 2)[0] }}{{ d['a'] }}{{ d['q'] is defined }}{{ [1, 2][5] is defined }}{{ messages[0]['role'] }}{{ messages[-1].role }}",
			"[1, 2](1, 2)bb12FalseFalsesystemassistant"},
		{"{{ 1e100 }}{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 1e22 }} {{ 123456789.0 }} {{ 1.5e-7 }} {{ 0.0 }} {{ -0.0 }} {{ 100.0 }}",
			"1e+1000.30000000000000004 0.3333333333333333 1e+22 123456789.0 1.5e-07 0.0 -0.0 100.0"},
		{"{{ 1_000 }}{{ 1.5e3 }}{{ 2e2 }}", "10001500.0200.0"},
		{"{{ 'a\\tb\\\\c\"d' }}{{ \"it's\" }}{{ 'x' 'y' \"z\" }}{{ '\\x41' }}", "a\tb\\c\"dit'sxyzA"},
		{"{{ ['a', 1, none, true, 1.5, [2], {'b': 'c'}] }}{{ ('a',) }}{{ () }}{{ {} }}{{ [] }}{{ {'a': [1, (2, 3)]} }}",
			"['a', 1, None, True, 1.5, [2], {'b': 'c'}]('a',)(){}[]{'a': [1, (2, 3)]}"},
		{"{{ 'caf\xc3\xa9'|upper }}{{ 'caf\xc3\xa9'[3] }}{{ 'caf\xc3\xa9'|length }}{{ 'caf\xc3\xa9'|reverse }}{{ 'caf\xc3\xa9'|title }}",
			"CAF\xc3\x89\xc3\xa9"
			"4\xc3\xa9"
			"facCaf\xc3\xa9"},
		{"{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% continue %}{% endif %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
			"00 02 10 12 "},
		{"{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{{ loop.last }}{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}{% for x in (1, 2) %}{{ x }}{% endfor %}",
			"1userFalse2assistantTruea.b.12"},
		{"{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f(a=1) }}",
			"12134512"},
		{"{% macro o() %}[{{ caller() }}]{% endmacro %}{% call o() %}x{% endcall %}{% macro t() %}{{ caller is defined }}{% endmacro %}{{ t() }}",
			"[x]False"},
		{"{% set ns = namespace(n=0, l=[]) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
			"6[0, 1, 2, 3]"},
		{"{% set x %}a{% if n %}b{% endif %}{% endset %}{{ x }}{{ x|length }}{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{% filter replace('a', 'o')|upper %}banana{% endfilter %}",
			"ab213BONONO"},
		{"{{ 'yes' if n > 2 else 'no' }}{{ 'yes' if n > 5 else 'no' }}{{ ('a' if n else 'b') ~ 'c' }}{{ 1 if true }}|{{ 1 if false }}|",
			"yesnoac1||"},
		{"{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}{% for k, v in d|items %}{{ loop.first }}{% endfor %}{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}",
			"a2items7TrueFalse37"},
		{"{% for i in [3, 1]|sort %}{{ i }}{% else %}none{% endfor %}{% for i in [1, 2]|reverse %}{{ i }}{% endfor %}{% for i in [1, 2, 3]|select('odd') %}{{ i }}{{ loop.first }}{% endfor %}",
			"13211True3False"},
		{"a  \n  {%- if true %} b {% endif -%}  \n c\n{% raw %}{{ n }}{% endraw %}\n{# x #}\n  {% if true %}\nd\n  {% endif %}\ne",
			"a b c\n{{ n }}d\ne"},
		{"{{ messages[2].tool_calls[0]['function'].name }}{{ messages[2].content is none }}{{ messages|length }}{{ messages[1].content|trim|length }}{{ (messages|first).role }}{{ (messages|last)['role'] }}",
			"fTrue32systemassistant"},
		{"{{ nothing is defined }}{{ nothing or 'x' }}{{ nothing|default('y', true) }}{{ not nothing }}{{ nothing is none }}{{ [nothing] | length }}{{ nothing ~ 'z' }}{{ nothing == nothing }}",
			"FalsexyTrueFalse1zTrue"},
		{"{{ true and 1 }}{{ 0 or 'x' }}{{ '' and 1 }}|{{ none or [] }}{{ [] or {} }}{{ 1 and 2 and 3 }}{{ 0 or '' or 5 }}",
			"1x|[]{}35"},
	};
	run_rows(rows, CGN_COUNT(rows));
}

static void mistakes_are_named(void **state)
{
	(void)state;
	static const struct row rows[] = {
		{"{{ raise_exception('no ' ~ n) }}", "no 3"},
		{"a\n{{ 'x' + 1 }}", "line 2 column 8: no \"+\" between a string and an integer"},
		{"{{ 'x' + none }}", "no \"+\" between a string and none"},
		{"{{ nothing.x }}", "line 1 column 11: \"x\" of an undefined value"},
		{"{{ nothing[0] }}", "an item of an undefined value"},
		{"{{ nothing() }}", "\"nothing\" is undefined and can't be called"},
		{"{{ 'a'.nope() }}", "a string has no method \"nope\""},
		{"{{ [1].append(2) }}", "a chat template may not change a list"},
		{"{{ d.update({}) }}", "a chat template may not change a dictionary"},
		{"{{ 1 / 0 }}", "division by zero"},
		{"{{ 9223372036854775807 + 1 }}", "does not fit 64 bits"},
		{"{{ 1 < 'a' }}", "an integer and a string can't be compared"},
		{"{% for x in 5 %}{% endfor %}", "an integer can't be walked through"},
		{"{% set a, b = [1] %}", "1 values can't be unpacked into 2 names"},
		{"{% set d.x = 1 %}", "an attribute can be set on a namespace only, not on a dictionary"},
		{"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "macro \"m\" takes 1 arguments, not 2"},
		{"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "macro \"m\" has no parameter \"b\""},
		{"{{ nothing|tojson }}", "an undefined value can't be written as JSON"},
		{"{{ range(1, 2, 0) }}", "step of zero"},
		{"{{ range(10000000) }}", "range of more than 100000"},
		{"{{ 'a'.split('') }}", "split at an empty string"},
		{"{{ [1][::0] }}", "the step of a slice is zero"},
		{"{{ n[1:] }}", "a slice of an integer"},
		{"{{ [1]|select|length }}", "length of a generator"},
		{"{{ d.items()|tojson }}", "a view of a dictionary can't be written as JSON"},
		{"{{ nothing|int }}", "a number of an undefined value"},
		{"{{ 'a%s' % n }}", "no \"%\" between a string and an integer"},
		{"{{ '0x1f'|int(0, 16) }}", "int with another base than 10 is not supported"},
		{"{{ {1: 2} }}", "an integer as a dictionary's key"},
		{"{{ [1]|map('nope') }}", "\"nope\""},
		{"{{ [1]|select('nope') }}", "the test \"nope\" is not supported"},
		{"{{ 'x'|nope }}", "line 1 column 8: the filter \"nope\" is not supported"},
		{"{{ 1 is nope }}", "the test \"nope\" is not supported"},
		{"{% include 'x' %}", "line 1 column 4: the statement \"include\" is not supported here"},
		{"{{ 1 +", "a tag that does not end"},
		{"{{ 'open }}", "a string that does not end"},
		{"{# open", "a comment that does not end"},
		{"{% raw %}", "{% raw %} without {% endraw %}"},
		{"{% if x %}", "endif is missing"},
		{"{% for x in y %}", "endfor is missing"},
		{"{% endif %}", "the statement \"endif\" is not supported here"},
		{"{% break %}", "break outside of a loop"},
		{"{% for a in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
			"break outside of a loop"},
		{"{% macro m(a, a) %}{% endmacro %}", "named twice"},
		{"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
		{"{{ f(a=1, 2) }}", "a positional argument behind a named one"},
		{"{{ dict(a=1, a=2) }}", "the argument \"a\" is given twice"},
		{"{{ a b }}", "expected }}, got \"b\""},
		{"{{ ? }}", "a character that has no meaning here"},
		{"{{ '\\ud800' }}", "broken \\x, \\u or \\U escape"},
		{"{{ 99999999999999999999 }}", "too large"},
		{"{{ }}", "expected an expression"},
		{"{% call 1 %}{% endcall %}", "needs the call of a macro"},
	};
	struct template_ask ask = sample_ask();
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		expect_failure(rows[i].source, &ask, CGN_INVALID, rows[i].text);
	struct template *t = NULL;
	assert_int_equal(compile_exact("a\xff", 2, &t).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "not UTF-8 at byte 1"));
	char *large = calloc(1, TEMPLATE_MAX_SOURCE + 1);
	memset(large, 'x', TEMPLATE_MAX_SOURCE + 1);
	assert_int_equal(compile_exact(large, TEMPLATE_MAX_SOURCE + 1, &t).code, CGN_INVALID);
	assert_true(cgn_ok(compile_exact(large, TEMPLATE_MAX_SOURCE, &t)));
	template_free(&t);
	template_free(&t);
	free(large);
}

static void what_is_asked_has_to_make_sense(void **state)
{
	(void)state;
	struct template_ask ask = sample_ask();
	ask.kwargs = json_parsed("[1]");
	expect_failure("x", &ask, CGN_INVALID, "chat_template_kwargs is not an object");
	ask.kwargs = json_parsed("null");
	expect_text("x", &ask, "x");
	ask.messages = json_parsed("{}");
	expect_failure("x", &ask, CGN_INVALID, "messages is not an array");
	ask = sample_ask();
	ask.kwargs = json_parsed("{\"bos_token\":\"B\",\"messages\":[],\"raise_exception\":1}");
	expect_text("{{ bos_token }}{{ messages|length }}{{ raise_exception }}", &ask, "B01");
}

static char *nested_text(const char *open, const char *inside, const char *close, size_t n)
{
	struct cgn_buf b = {0};
	for (size_t i = 0; i < n; i++)
		cgn_buf_putz(&b, open);
	cgn_buf_putz(&b, inside);
	for (size_t i = 0; i < n; i++)
		cgn_buf_putz(&b, close);
	return (char *)(uintptr_t)cgn_buf_z(&b);
}

static void every_bound_holds(void **state)
{
	(void)state;
	static const struct {
		const char *source;
		size_t max_output, max_steps, max_memory;
		const char *what;
	} rows[] = {
		{"{{ 'abc' * 4 }}", 11, 0, 0, "more than 11 bytes"},
		{"{% set r = range(9999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", 0, 0, 0,
			"too many steps"},
		{"{% for i in range(100) %}{{ i }}{% endfor %}", 0, 300, 0, "too many steps"},
		{"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
			0, 0, 0, "more than"},
		{"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
			0, 0, 1 << 20, "too much memory"},
		{"{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
			0, 0, 1 << 20, "too much memory"},
		{"{{ messages }}", 0, 0, 200, "too much memory"},
		{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 0, 0, 0, "recurses more than"},
		{"{% macro m() %}{{ m()|upper }}{% endmacro %}{{ m() }}", 0, 0, 0, "recurses more than"},
		{"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", 0, 0, 0, "more than"},
		{"{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}", 0, 0, 0, "nested more than"},
		{"{% set ns = namespace(x=0) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
			0, 0, 0, "nested more than"},
		{"{{ dict(*range(999)) }}", 0, 0, 0, "more than 256 arguments"},
		{"{{ 'x'|indent(999999999999, true) }}", 0, 0, 0, "too many steps"},
		{"{{ 'aaaa'.replace('', 'b' * 9999999).replace('', 'c' * 999999) }}", 0, 0, 0, "more than"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct template_ask ask = sample_ask();
		ask.max_output = rows[i].max_output;
		ask.max_steps = rows[i].max_steps;
		ask.max_memory = rows[i].max_memory;
		expect_failure(rows[i].source, &ask, CGN_TOO_LARGE, rows[i].what);
	}
	static const struct row deep[] = {
		{"{{ (", ") }}"},
		{"{{ [", "] }}"},
		{"{{ -", " }}"},
		{"{{ not ", " }}"},
		{"{% if 1 %}", "{% endif %}"},
		{"{% if 1 %}{{ f(", ") }}{% endif %}"},
	};
	for (size_t i = 0; i < CGN_COUNT(deep); i++) {
		struct template *t = NULL;
		const char *open =
			strncmp(deep[i].source, "{{ ", 3) == 0 ? deep[i].source + 3 : deep[i].source;
		char *source = nested_text(open, "1",
			open == deep[i].source                               ? deep[i].text
				: cgn_str_is((struct cgn_str){open, 1}, "(") ? ")"
									     : "",
			5000);
		char *whole = nested_text("{{ ", source, " }}", open == deep[i].source ? 0 : 1);
		assert_int_equal(compile_exact(whole, strlen(whole), &t).code, CGN_INVALID);
		free(source);
		free(whole);
	}
	struct template_ask ask = sample_ask();
	char *chain = nested_text("1 + ", "1", "", 5000), *whole = nested_text("{{ ", chain, " }}", 1);
	expect_failure(whole, &ask, CGN_INVALID, "operators in a row");
	free(chain);
	free(whole);
}

static void a_full_buffer_is_an_error(void **state)
{
	(void)state;
	struct template_ask ask = sample_ask();
	struct cgn_buf out = {.limit = 5};
	assert_int_equal(render_as("{{ 'abcdef' }}", &ask, &out).code, CGN_TOO_LARGE);
	assert_int_equal(out.n, 0);
	assert_false(out.bad);
	assert_true(cgn_ok(render_as("{{ 'abcde' }}", &ask, &out)));
	assert_int_equal(out.n, 5);
	assert_int_equal(render_as("{{ 'f' }}", &ask, &out).code, CGN_TOO_LARGE);
	assert_int_equal(out.n, 5);
	cgn_buf_fini(&out);
}

static void the_last_message_is_left_open(void **state)
{
	(void)state;
	static const char keeps[] = "{% for m in messages %}<{{ m.content }}>{% endfor %}",
			  trims[] = "{% for m in messages %}<{{ m.content|trim }}>{% endfor %}";
	struct template_ask ask = {.continue_final_message = true,
		.messages = json_parsed("[{\"content\":\"a b\"},{\"content\":\" a b \"}]")};
	expect_text(keeps, &ask, "<a b>< a b ");
	expect_text(trims, &ask, "<a b><a b");
	expect_failure("{{ 1 }}", &ask, CGN_INVALID, "does not show the last message");
	ask.messages = json_parsed(
		"[{\"content\":[{\"text\":\"no\"},{\"text\":\"\\u00e9\"},{\"type\":\"image\"}]}]");
	expect_text("{{ messages[0].content[1].text }}</s>", &ask, "\xc3\xa9");
	ask.messages = json_parsed("[{\"content\":null}]");
	expect_failure(keeps, &ask, CGN_INVALID, "the last message has no text");
	ask.messages = json_parsed("[]");
	expect_failure(keeps, &ask, CGN_INVALID, "the last message has no text");
	ask.add_generation_prompt = true;
	expect_failure(keeps, &ask, CGN_INVALID, "exclude each other");
}

/* Keys that an object names thousands of times, or of which there are many: found, in order, with the last
 * value at the first place. */
static void large_objects_are_dictionaries(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"o\":{");
	for (int i = 0; i < 20000; i++)
		cgn_buf_fmt(&b, "%s\"k%d\":%d", i > 0 ? "," : "", i % 15000, i);
	cgn_buf_putz(&b, "}}");
	struct template_ask ask = {.messages = json_parsed("[]"), .kwargs = json_parsed(cgn_buf_z(&b))};
	expect_text(
		"{{ o|length }} {{ o.k0 }} {{ o.k4999 }} {{ o.k5000 }} {{ o.k14999 }} {{ o.k15000 }}{{ (o.items()|list)[1] }}",
		&ask, "15000 15000 19999 5000 14999 ('k1', 15001)");
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(white_space_goes_where_tags_say),
		cmocka_unit_test(expressions_are_pythons),
		cmocka_unit_test(statements_do_what_they_say),
		cmocka_unit_test(methods_of_strings_are_pythons),
		cmocka_unit_test(methods_of_lists_and_dictionaries_are_pythons),
		cmocka_unit_test(filters_are_jinjas),
		cmocka_unit_test(tests_are_jinjas),
		cmocka_unit_test(loops_say_where_they_are),
		cmocka_unit_test(statements_are_jinjas),
		cmocka_unit_test(mistakes_are_named),
		cmocka_unit_test(what_is_asked_has_to_make_sense),
		cmocka_unit_test(every_bound_holds),
		cmocka_unit_test(a_full_buffer_is_an_error),
		cmocka_unit_test(the_last_message_is_left_open),
		cmocka_unit_test(large_objects_are_dictionaries),
	};
	return cmocka_run_group_tests(all, NULL, NULL);
}
