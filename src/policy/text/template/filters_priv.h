/* SPDX-License-Identifier: Apache-2.0 */
/* template filters, inside: arguments that several filters read, and the filters of each file. */
#pragma once
#include "template_priv.h"

typedef bool filter_fn(struct vm *vm, struct value v, struct args args, struct value *out);
struct filter_row {
	const char *name;
	filter_fn *run;
};
struct filter_rows {
	const struct filter_row *rows;
	size_t n;
};
extern const struct filter_rows filters_of_text;        /* filters_text.c: text and numbers */
extern const struct filter_rows filters_of_collections; /* filters_list.c */

/* Read an argument that names an attribute: text, or the index of an item. */
bool filter_path_arg(struct vm *vm, struct args args, size_t i, const char *name, struct cgn_str *out);
/* Follow a path like "a.b.0" from |v|. */
bool filter_attr_path(struct vm *vm, struct value v, struct cgn_str path, struct value *out);
