/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer, loading: load.c reads the file and its added tokens, load_model.c its model, load_parts.c the
 * rest. */
#pragma once
#include "policy/text/tokenizer/tokenizer_priv.h"

struct tok_loader {
	struct tokenizer *t;
	struct cgn_err *err;
	bool has_template;
	struct cgn_arena scratch; /* Places and strings of the file that are not kept. */
};
CGN_RC tok_load_model(struct tok_loader *l, struct json_val model);
CGN_RC tok_load_normalizer(struct tok_loader *l, struct json_val v);
CGN_RC tok_load_pre_tokenizer(struct tok_loader *l, struct json_val v);
CGN_RC tok_load_post_processor(struct tok_loader *l, struct json_val v);
/* Read a member of |object|, which stands at |at|. A wrong type is INVALID; an absent member too, unless
 * |*out| may keep its value. */
CGN_RC tok_get_bool(struct tok_loader *l, struct json_val object, const char *at, const char *key,
	bool required, bool *out);
/* The string is kept. */
CGN_RC tok_get_str(struct tok_loader *l, struct json_val object, const char *at, const char *key,
	struct cgn_str *out);
CGN_RC tok_get_array(struct tok_loader *l, struct json_val object, const char *at, const char *key,
	struct json_val *out);
const char *tok_place(struct tok_loader *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool tok_is_null(struct json_val object, const char *key); /* Absent or null. */
