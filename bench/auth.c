/* SPDX-License-Identifier: Apache-2.0 */
/* bench auth: API keys, by their number: seconds to load the file's text, bytes of memory per key, and
 * nanoseconds of a look-up of a known and of an unknown key. Prints one JSON object. */
#include <stdlib.h>
#include <time.h>

#include "base/json/json.h"
#include "policy/who/auth/auth.h"

#define LOOKUPS 200000

static const size_t sizes[] = {1, 1000, 65536, 1000000};

static uint64_t now_ns(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * CGN_SEC + (uint64_t)t.tv_nsec;
}

/* Write line |i| of the file; |secret| gets the key's text. */
static void line_put(struct cgn_buf *text, size_t i, char secret[AUTH_SECRET_MAX])
{
	struct auth_key key = {.scopes = AUTH_CHAT, .name = "laptop", .tenant = "acme"};
	uint8_t entropy[AUTH_SECRET_BYTES] = {0};
	memcpy(entropy, &i, sizeof i);
	if (!cgn_ok(auth_key_make(entropy, 1769846400, &key, secret, NULL)))
		abort();
	(void)snprintf(key.id, sizeof key.id, "%08zx", i); /* 32 random bits would repeat. */
	auth_key_format(&key, text);
}

static double find_ns(const struct auth_keys *k, char (*secrets)[AUTH_SECRET_MAX], size_t n, bool known)
{
	struct auth_key key;
	uint64_t from = now_ns();
	for (size_t i = 0; i < LOOKUPS; i++)
		if (auth_keys_find(k, cgn_str_of(secrets[i * 7919 % n]), &key) != known)
			abort();
	return (double)(now_ns() - from) / LOOKUPS;
}

static void size_report(struct json_out *o, size_t n)
{
	struct cgn_buf text = {0}, name = {0};
	struct auth_keys *k = NULL;
	struct cgn_err err;
	const struct digest seed = {{1}};
	char(*secrets)[AUTH_SECRET_MAX] = calloc(n, sizeof *secrets);
	for (size_t i = 0; i < n; i++)
		line_put(&text, i, secrets[i]);
	uint64_t from = now_ns();
	if (!cgn_ok(auth_keys_parse("keys", cgn_buf_view(&text), &seed, &k, &err)))
		abort();
	uint64_t took = now_ns() - from;
	cgn_buf_fmt(&name, "%zu", n);
	json_key_open(o, cgn_buf_z(&name), '{');
	json_key_f64(o, "load_s", (double)took / (double)CGN_SEC);
	json_key_f64(o, "bytes_per_key", (double)auth_keys_bytes(k) / (double)n);
	json_key_f64(o, "known_ns", find_ns(k, secrets, n, true));
	for (size_t i = 0; i < n; i++)
		secrets[i][6] = '-';
	json_key_f64(o, "unknown_ns", find_ns(k, secrets, n, false));
	json_close(o, '}');
	auth_keys_unref(&k);
	cgn_buf_fini(&text);
	cgn_buf_fini(&name);
	free(secrets);
}

int main(void)
{
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	for (size_t i = 0; i < CGN_COUNT(sizes); i++)
		size_report(&o, sizes[i]);
	json_close(&o, '}');
	(void)puts(cgn_buf_z(&b));
	cgn_buf_fini(&b);
	return 0;
}
