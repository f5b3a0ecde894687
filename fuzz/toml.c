/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz toml: for any text, each node is well-formed and lies inside the text. */
#include "base/toml/toml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static cgn_rc check_node(void *arg, const struct toml_node *node, struct cgn_err *err)
{
	const size_t *n = arg;
	(void)err;
	CGN_MUST(node->depth >= 1 && node->depth <= TOML_MAX_DEPTH);
	CGN_MUST(node->at.line >= 1 && node->at.line <= *n + 1 && node->at.column >= 1 &&
		node->at.column <= *n + 1);
	CGN_MUST(node->key_at.line >= 1 && node->key_at.column >= 1);
	CGN_MUST(cgn_utf8_valid(node->text.p, node->text.n));
	return CGN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_err err;
	cgn_rc rc = toml_parse("fuzz.toml", (struct cgn_str){(const char *)data, n}, check_node, &n, &err);
	CGN_MUST(cgn_ok(rc) || cgn_str_starts(cgn_str_of(err.msg), "fuzz.toml"));
	return 0;
}
