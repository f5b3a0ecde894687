/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz engine_tokens: any answer to a tokenize request is read or refused; at most the requested number of
 * ids is read. The first byte chooses kind and step. */
#include "policy/node/engine/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const kinds[] = {"sim", "llama_cpp"};
	struct cgn_buf out = {0};
	struct cgn_err err = {0};
	if (n < 1)
		return 0;
	const struct engine_tokens_ops *ops = engine_tokens_of(cgn_str_of(kinds[data[0] & 1]));
	CGN_MUST(ops != NULL);
	const struct engine_tokens_step *s = &ops->chat[data[0] >> 1 & 1];
	if (s->path == NULL)
		return 0;
	bool is_last = s == &ops->chat[ENGINE_TOKENS_STEPS - 1] || s[1].path == NULL;
	if (!cgn_ok(s->read((struct cgn_str){(const char *)data + 1, n - 1}, 64, &out, &err)))
		CGN_MUST(err.code == CGN_BAD_GATEWAY);
	else if (is_last)
		CGN_MUST(out.n % sizeof(uint32_t) == 0 && out.n <= 64 * sizeof(uint32_t));
	cgn_buf_fini(&out);
	return 0;
}
