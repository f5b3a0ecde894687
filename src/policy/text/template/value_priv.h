/* SPDX-License-Identifier: Apache-2.0 */
/* template values: what variables and expressions hold. Made in the render's memory (struct vm), never changed
 * once another value refers to them. */
#pragma once
#include "base/core/arena.h"
#include "base/json/json.h"

struct vm;

enum value_kind {
	V_UNDEFINED,
	V_NONE,
	V_BOOL,
	V_INT,
	V_BIG,
	V_FLOAT,
	V_STR,
	V_LAZY,
	V_LIST,
	V_DICT,
	V_SPACE,
	V_MACRO,
	V_METHOD,
	V_LOOP,
	V_GLOBAL
};

/* Python's kinds of iterables. ONCE: a generator, empty after its first use. */
enum list_kind { LIST_PLAIN, LIST_TUPLE, LIST_KEYS, LIST_VALUES, LIST_ITEMS, LIST_ONCE };

struct list;
struct dict;
struct value {
	enum value_kind kind;
	uint8_t as;  /* V_LIST: enum list_kind. */
	uint16_t id; /* V_GLOBAL: its number. */
	union {
		bool b;
		int64_t i;
		double f;
		/* V_STR; V_BIG: the text of an integer wider than 64 bits; a NUL follows. */
		struct cgn_str s;
		struct lazy_str *lazy;
		struct list *list;
		struct dict *dict; /* V_DICT, V_SPACE */
		struct macro *macro;
		struct method *method;
		struct loop *loop;
	};
};

/* A JSON string with escapes; unescaped on first use, once for all copies of the value. */
struct lazy_str {
	struct json_val raw;
	struct cgn_str s; /* p == NULL: not unescaped yet. */
};
/* Containers of the document are parsed on first use (raw.p != NULL until then). */
struct list {
	struct json_val raw;
	struct value *v;
	size_t n, cap;
};
struct entry {
	struct cgn_str key;
	struct value v;
};
struct dict {
	struct json_val raw;
	struct entry *e;
	size_t n, cap;
	uint32_t *index; /* Open addressing by hash of the key, 1-based; NULL while small. */
	size_t n_index;  /* A power of two. */
};
struct method {
	struct value self;
	int id;
};

static inline struct value v_undefined(void)
{
	return (struct value){.kind = V_UNDEFINED};
}
static inline struct value v_none(void)
{
	return (struct value){.kind = V_NONE};
}
static inline struct value v_bool(bool b)
{
	return (struct value){.kind = V_BOOL, .b = b};
}
static inline struct value v_int(int64_t i)
{
	return (struct value){.kind = V_INT, .i = i};
}
static inline struct value v_float(double f)
{
	return (struct value){.kind = V_FLOAT, .f = f};
}
static inline struct value v_str(struct cgn_str s)
{
	return (struct value){.kind = V_STR, .s = s};
}
static inline bool is_str(struct value v)
{
	return v.kind == V_STR || v.kind == V_LAZY;
}
static inline bool is_num(struct value v)
{
	return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL || v.kind == V_BIG;
}
static inline bool is_indexed(struct value v)
{
	return v.kind == V_LIST && v.as <= LIST_TUPLE;
}

/* ---- values.c. Functions with a struct vm return false once the render has failed. ---- */
const char *value_type(struct value v);
bool value_of_json(struct vm *vm, struct json_val j, struct value *out);
bool value_str(struct vm *vm, struct value v, struct cgn_str *out); /* |v| is a string. */
/* Parse the container if that was not done yet. */
bool value_list(struct vm *vm, struct value v);
bool value_true(struct vm *vm, struct value v, bool *out);
double value_num(struct value v);
bool value_equal(struct vm *vm, struct value a, struct value b, bool *out);
/* Fails when the values have no order. */
bool value_order(struct vm *vm, struct value a, struct value b, bool fold, int *out);
bool list_new(struct vm *vm, size_t cap, struct value *out);
bool list_add(struct vm *vm, struct list *l, struct value v);
bool dict_new(struct vm *vm, enum value_kind kind, struct value *out);
bool dict_set(struct vm *vm, struct dict *d, struct cgn_str key, struct value v);
bool dict_find(struct vm *vm, struct dict *d, struct cgn_str key, struct value *out, bool *found);
/* Get the elements that a for loop visits: a list's elements, a dictionary's keys, a string's characters. */
bool value_items(struct vm *vm, struct value v, struct value *out);
bool dict_pairs(struct vm *vm, struct dict *d, struct value *out);
