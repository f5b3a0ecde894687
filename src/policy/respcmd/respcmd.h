/* SPDX-License-Identifier: Apache-2.0 */
/* respcmd: what a Redis client asks for, read from its bytes
 * (redis.io/docs/latest/develop/reference/protocol-spec, .../commands). A command comes as an array of bulks
 * or as a bare line; a large value in it is told of before it came, so that its bytes need never pass through
 * here. Nothing announced is believed before it came, nothing is looked at twice; a command takes at most
 * RESPCMD_MAX_TEXT of memory for its text and 8 bytes per argument beside it. One thread each. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "base/digest/digest.h"

#define RESPCMD_MAX_TEXT ((size_t)1 << 20) /* of a command, but for the values that come apart */
#define RESPCMD_MAX_LINE ((size_t)65536)   /* words of a bare line */
#define RESPCMD_MAX_ARGS 65536
#define RESPCMD_APART    ((size_t)4096) /* longer values come apart */
/* announced; what is too large for a store is still read to its end */
#define RESPCMD_MAX_VALUE ((size_t)512 << 20)
/* A client that is not authenticated. */
#define RESPCMD_WARY_ARGS 10
#define RESPCMD_WARY_BULK ((size_t)16384)

enum respcmd_id {
#define CMD(id, name, arity, flags, first, last, step, value, value_step) RESPCMD_##id,
#include "policy/respcmd/respcmd.def"
#undef CMD
	RESPCMD_UNKNOWN
};
#define RESPCMD_READS  1U
#define RESPCMD_WRITES 2U
#define RESPCMD_FAST   4U
#define RESPCMD_EARLY  8U
struct respcmd_row {
	const char *name;
	int arity;
	unsigned flags;
	int first, last, step, value, value_step;
};
extern const struct respcmd_row respcmd_rows[RESPCMD_UNKNOWN];
enum respcmd_id respcmd_find(struct cgn_str name); /* any case */
bool respcmd_arity_ok(enum respcmd_id id, size_t n_args);

/* ---- the stream ---- */
struct respcmd_arg {
	uint32_t at, n; /* at == RESPCMD_IS_APART: the n-th value that came apart */
};
#define RESPCMD_IS_APART UINT32_MAX
struct respcmd {
	bool wary; /* the client has not said the password */
	bool crlf; /* of a value that came apart is due */
	uint32_t due, n_apart;
	uint32_t n, cap;
	struct respcmd_arg *args; /* |few| or from the heap */
	struct respcmd_arg few[8];
	enum respcmd_id id; /* once its name was read */
	size_t at;          /* bytes of the text that were read */
	size_t value;       /* on RESPCMD_VALUE: so many bytes of a value are next */
};
void respcmd_init(struct respcmd *c);
void respcmd_reset(struct respcmd *c); /* to the next command; |wary| stays */
void respcmd_fini(struct respcmd *c);

enum respcmd_outcome {
	RESPCMD_MORE, /* call again with more text */
	/* whole: |at| bytes are its text, |n| its arguments; none: an empty line, nothing to do */
	RESPCMD_GOT,
	/* |value| bytes follow that are no part of the text: it goes on with what is behind them. Call again
	 * when they were taken. */
	RESPCMD_VALUE,
	RESPCMD_BAD, /* |*why|: what Redis says, behind "-ERR "; the stream cannot be gone on with */
};
/* |text| is the command from its first byte on, each time, without the values that came apart. */
enum respcmd_outcome respcmd_step(struct respcmd *c, struct cgn_str text, const char **why);
/* Of a whole command, or up to what was read; empty when it came apart. */
struct cgn_str respcmd_arg(const struct respcmd *c, struct cgn_str text, size_t i);

/* ---- arguments ---- */
/* What block a key means. "HEX64" and "HEX64:segment" are the digest itself; of any other key it is a BLAKE3
 * of it with a tag before it, and false is returned: the name has to be kept with the block. */
bool respcmd_key(struct cgn_str key, struct digest *digest, uint32_t *segment);
bool respcmd_int(struct cgn_str s, int64_t *out); /* as Redis reads one: no '+', no leading zeros, no space */
/* Does |s| look like |pattern|: * ? [a-z] [^...] \x. At most pattern.n times s.n steps. */
bool respcmd_glob(struct cgn_str pattern, struct cgn_str s);
/* GETRANGE's inclusive ends of a value of |size| bytes; negative ones count from the end. Empty: *n 0. */
void respcmd_range(int64_t first, int64_t last, uint64_t size, uint64_t *off, uint64_t *n);

/* Options of SET key value. */
struct respcmd_set {
	bool only_new, only_old, keep_ttl, get;
	uint64_t expires_unix_ms; /* 0: never */
};
/* From argument |from| on. What Redis says without "-", NULL: well. */
const char *respcmd_set_options(const struct respcmd *c, struct cgn_str text, size_t from, uint64_t now_ms,
	struct respcmd_set *out);
/* When |amount| in |unit_ms| from |base_ms| on (0: absolute) is; false: not positive, or beyond what can be
 * said. */
bool respcmd_expiry(int64_t amount, uint64_t unit_ms, uint64_t base_ms, uint64_t *out);
