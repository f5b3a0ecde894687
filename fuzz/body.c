/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz body: what body_read accepts has each key that routing reads at most once; what it refuses has a sentence. */
#include <stdlib.h>

#include "policy/text/body/body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A body without its salt is still JSON, and all else of it is where it was. */
static void check_salt(struct cgn_str body, struct cgn_str model)
{
	struct body_facts facts;
	struct body_fault fault;
	char *text = cgn_str_dupz(body);
	CGN_MUST(text != NULL);
	CGN_MUST(cgn_ok(body_read((struct cgn_str){text, body.n}, &facts, &fault)));
	body_drop_salt(text, &facts);
	body_drop_names(text, &facts);
	CGN_MUST(cgn_ok(body_read((struct cgn_str){text, body.n}, &facts, &fault)));
	CGN_MUST(facts.salt.raw.p == NULL && facts.model.raw.n == model.n);
	CGN_MUST(model.p == NULL || facts.model.raw.p - text == model.p - body.p);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct body_facts facts;
	struct body_fault fault;
	struct json_val model, key_value;
	struct cgn_str key;
	size_t models = 0;
	if (!cgn_ok(body_read((struct cgn_str){(const char *)data, n}, &facts, &fault))) {
		CGN_MUST(fault.code != NULL && fault.text[0] != '\0');
		return 0;
	}
	for (struct json_iter it = json_iter_of(facts.json); json_next_member(&it, &key, &key_value);)
		models += json_key_is(key, "model");
	CGN_MUST(models <= 1);
	CGN_MUST(json_get(facts.json, "model", &model) == (facts.model.raw.p != NULL));
	CGN_MUST(models == 0 || model.raw.p == facts.model.raw.p);
	CGN_MUST(json_get_bool(facts.json, "stream", false) == facts.stream);
	check_salt((struct cgn_str){(const char *)data, n}, facts.model.raw);
	return 0;
}
