/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz modelname: the output is the same for any cuts of the answer, and is the answer with at most its name replaced.
 * The first byte chooses the cuts. */
#include <stdlib.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "policy/text/modelname/modelname.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void filter_text(struct cgn_str text, enum modelname_shape shape, size_t step, struct cgn_buf *out)
{
	struct modelname f;
	modelname_init(&f, shape, CGN_STR("\"asked\""));
	for (size_t at = 0; at < text.n; at += step) {
		struct cgn_str part = {text.p + at, text.n - at < step ? text.n - at : step};
		char *chunk = cgn_str_dupz(part); /* A block of its own, freed after the call. */
		CGN_MUST(chunk != NULL);
		modelname_feed(&f, (struct cgn_str){chunk, part.n}, out);
		free(chunk);
	}
	CGN_MUST(!out->bad);
}

/* A document stays one, and its name is the one asked for. */
static void check_document(struct cgn_str text, struct cgn_str got)
{
	struct json_val before, after, model;
	if (!cgn_ok(json_parse(text, &before, NULL, NULL)))
		return;
	CGN_MUST(cgn_ok(json_parse(got, &after, NULL, NULL)) && after.type == before.type);
	CGN_MUST(before.type == JSON_OBJECT || cgn_str_eq(text, got));
	if (before.type != JSON_OBJECT)
		return;
	struct json_iter it = json_iter_of(before), own = json_iter_of(after);
	struct cgn_str key, own_key;
	bool found = false;
	while (json_next_member(&it, &key, &model)) {
		struct json_val own_model;
		CGN_MUST(json_next_member(&own, &own_key, &own_model) && cgn_str_eq(key, own_key));
		bool nest = cgn_str_is(key, "message") || cgn_str_is(key, "response");
		bool is_name = !found && cgn_str_is(key, "model") && model.type == JSON_STRING;
		if (is_name && cgn_str_is(own_model.raw, "\"asked\""))
			found = true;
		else if (nest && !found)
			found = !cgn_str_eq(model.raw, own_model.raw);
		else
			CGN_MUST(cgn_str_eq(model.raw, own_model.raw));
		CGN_MUST(!is_name || found);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 2)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	for (int shape = MODELNAME_DOCUMENT; shape <= MODELNAME_EVENTS; shape++) {
		struct cgn_buf whole = {0}, parts = {0};
		filter_text(text, (enum modelname_shape)shape, text.n, &whole);
		filter_text(text, (enum modelname_shape)shape, (size_t)data[0] % 16 + 1, &parts);
		CGN_MUST(cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&parts)));
		if (shape == MODELNAME_DOCUMENT)
			check_document(text, cgn_buf_view(&whole));
		cgn_buf_fini(&whole);
		cgn_buf_fini(&parts);
	}
	return 0;
}
