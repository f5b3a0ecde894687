/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz auth_keys: a file of API keys. A file that is taken is written and read again without a change. */
#include <stdlib.h>

#include "policy/who/auth/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct digest seed = {{1}};

/* Return NULL for a file that is refused. */
static struct auth_keys *keys_read(struct cgn_str text)
{
	struct auth_keys *k = NULL;
	struct cgn_err err;
	if (!cgn_ok(auth_keys_parse("keys", text, &seed, &k, &err)))
		CGN_MUST(cgn_str_starts(cgn_str_of(err.msg), "keys"));
	return k;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_buf text = {0};
	struct auth_key key, again;
	struct auth_keys *k = keys_read((struct cgn_str){(const char *)data, n});
	if (k == NULL)
		return 0;
	for (size_t i = 0; i < auth_keys_count(k); i++) {
		auth_keys_at(k, i, &key);
		auth_key_format(&key, &text);
	}
	struct auth_keys *same = keys_read(cgn_buf_view(&text));
	CGN_MUST(same != NULL && auth_keys_count(same) == auth_keys_count(k));
	for (size_t i = 0; i < auth_keys_count(k); i++) {
		auth_keys_at(k, i, &key);
		auth_keys_at(same, i, &again);
		CGN_MUST(memcmp(&key, &again, sizeof key) == 0);
	}
	(void)auth_keys_find(k, (struct cgn_str){(const char *)data, n}, &key);
	auth_keys_unref(&k);
	auth_keys_unref(&same);
	cgn_buf_fini(&text);
	return 0;
}
