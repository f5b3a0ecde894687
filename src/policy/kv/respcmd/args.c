/* SPDX-License-Identifier: Apache-2.0 */
/* args: the meaning of a command's arguments. */
#include "base/codec/codec.h"
#include "base/core/err.h"
#include "policy/kv/respcmd/respcmd.h"

/* Hashed before a foreign key, so that no other kind of data has the same digest. */
static const char key_tag[] = "cognitora.resp.v1";

static bool digest_read(struct cgn_str hex, struct digest *out)
{
	for (size_t i = 0; i < DIGEST_BYTES; i++) {
		int high = hex_digit(hex.p[2 * i]), low = hex_digit(hex.p[2 * i + 1]);
		if (high < 0 || low < 0)
			return false;
		out->b[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

static bool segment_read(struct cgn_str s, uint32_t *out)
{
	uint64_t v;
	if (!cgn_str_u64(s, &v) || v > UINT32_MAX || (s.n > 1 && s.p[0] == '0'))
		return false;
	*out = (uint32_t)v;
	return true;
}

bool respcmd_key(struct cgn_str key, struct digest *digest, uint32_t *segment)
{
	size_t hex = 2 * (size_t)DIGEST_BYTES;
	*segment = 0;
	if (key.n >= hex && digest_read(key, digest)) {
		if (key.n == hex)
			return true;
		if (key.p[hex] == ':' &&
			segment_read((struct cgn_str){key.p + hex + 1, key.n - hex - 1}, segment))
			return true;
	}
	blake3_hasher h;
	blake3_hasher_init(&h);
	blake3_hasher_update(&h, key_tag, sizeof key_tag); /* The tag includes its NUL. */
	blake3_hasher_update(&h, key.p, key.n);
	blake3_hasher_finalize(&h, digest->b, sizeof digest->b);
	return false;
}

bool respcmd_int(struct cgn_str s, int64_t *out)
{
	bool minus = s.n > 0 && s.p[0] == '-';
	struct cgn_str digits = minus ? (struct cgn_str){s.p + 1, s.n - 1} : s;
	uint64_t v;
	if (!cgn_str_u64(digits, &v) || (digits.n > 1 && digits.p[0] == '0') || (minus && v == 0) ||
		v > (uint64_t)INT64_MAX + minus)
		return false;
	*out = minus ? (int64_t)(0 - v) : (int64_t)v;
	return true;
}

void respcmd_range(int64_t first, int64_t last, uint64_t size, uint64_t *off, uint64_t *n)
{
	int64_t all = (int64_t)size;
	*off = *n = 0;
	if (first < 0 && last < 0 && first > last)
		return;
	first = first >= 0 ? first : first < -all ? 0 : first + all;
	last = last >= 0 ? last : last < -all ? 0 : last + all;
	last = last < all ? last : all - 1;
	if (all == 0 || first > last)
		return;
	*off = (uint64_t)first;
	*n = (uint64_t)(last - first) + 1;
}

bool respcmd_expiry(int64_t amount, uint64_t unit_ms, uint64_t base_ms, uint64_t *out)
{
	if (amount <= 0 || (uint64_t)amount > (uint64_t)INT64_MAX / unit_ms ||
		(uint64_t)amount * unit_ms > (uint64_t)INT64_MAX - base_ms)
		return false;
	*out = base_ms + (uint64_t)amount * unit_ms;
	return true;
}

static bool arg_is(struct cgn_str s, const char *word)
{
	return cgn_str_eq_nocase(s, cgn_str_of(word));
}

/* The unit of EX, PX, EXAT or PXAT in milliseconds; 0: another word. */
static uint64_t expiry_unit(struct cgn_str s)
{
	return arg_is(s, "ex") || arg_is(s, "exat") ? 1000 : arg_is(s, "px") || arg_is(s, "pxat") ? 1 : 0;
}

const char *respcmd_set_options(const struct respcmd *c, struct cgn_str text, size_t from, uint64_t now_ms,
	struct respcmd_set *out)
{
	*out = (struct respcmd_set){0};
	for (size_t i = from; i < c->n; i++) {
		struct cgn_str s = respcmd_arg(c, text, i);
		uint64_t unit = expiry_unit(s);
		int64_t amount;
		if (unit > 0 && i + 1 < c->n && !out->keep_ttl && out->expires_unix_ms == 0) {
			if (!respcmd_int(respcmd_arg(c, text, ++i), &amount))
				return "ERR value is not an integer or out of range";
			if (!respcmd_expiry(amount, unit, s.n == 4 ? 0 : now_ms, &out->expires_unix_ms))
				return "ERR invalid expire time in 'set' command";
		} else if (arg_is(s, "nx") && !out->only_old) {
			out->only_new = true;
		} else if (arg_is(s, "xx") && !out->only_new) {
			out->only_old = true;
		} else if (arg_is(s, "keepttl") && out->expires_unix_ms == 0) {
			out->keep_ttl = true;
		} else if (arg_is(s, "get")) {
			out->get = true;
		} else {
			return "ERR syntax error";
		}
	}
	return NULL;
}
