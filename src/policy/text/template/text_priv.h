/* SPDX-License-Identifier: Apache-2.0 */
/* template text: printing values, and operations on strings. Functions with a struct vm return false once the
 * render has failed. */
#pragma once
#include "policy/text/template/value_priv.h"

/* print.c */
struct json_style {
	int64_t indent; /* -1: one line. */
	bool ascii, sort;
	struct cgn_str item, key; /* Separators; p == NULL: the default. */
};
bool print_value(struct vm *vm, struct value v); /* Print as {{ v }} does. */
bool print_json(struct vm *vm, struct value v, const struct json_style *style);
/* Return the text that print_value prints. */
bool value_text(struct vm *vm, struct value v, struct cgn_str *out);

/* text.c: UTF-8 */
size_t utf8_count(struct cgn_str s);
size_t utf8_step(const char *p, const char *end, int32_t *code);
/* TITLE_WORDS: words as the title filter defines them. */
enum text_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_TITLE_WORDS, CASE_CAPITAL };
bool text_case(struct vm *vm, struct cgn_str s, enum text_case how, struct cgn_str *out);
bool text_is_space(int32_t code);
struct cgn_str text_strip(struct cgn_str s, const struct cgn_str *chars, bool left, bool right);
bool text_replace(struct vm *vm, struct cgn_str s, struct cgn_str from, struct cgn_str to, int64_t count,
	struct cgn_str *out);
bool text_find(struct vm *vm, struct cgn_str s, struct cgn_str what, size_t *at); /* SIZE_MAX: not found. */
/* Requires n >= 1. */
bool text_join(struct vm *vm, const struct cgn_str *parts, size_t n, struct cgn_str *out);
bool text_slice(struct vm *vm, struct cgn_str s, const int64_t *from, const int64_t *to, int64_t step,
	struct cgn_str *out);
bool slice_range(size_t n, const int64_t *from, const int64_t *to, int64_t step, int64_t *at, size_t *count);
