/* SPDX-License-Identifier: Apache-2.0 */
/* respcmd: reads the commands of a Redis client from bytes
 * (redis.io/docs/latest/develop/reference/protocol-spec, .../commands). A command is an array of bulks, or
 * one line of words. A large value is announced before its bytes arrive, so that its bytes need not pass
 * through here: it comes "apart". No memory is reserved for announced lengths, and no byte is read twice. A
 * command takes at most RESPCMD_MAX_TEXT bytes for its text, and 8 bytes for each argument. Not
 * thread-safe. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "base/digest/digest.h"

#define RESPCMD_MAX_TEXT ((size_t)1 << 20) /* Bytes of a command without the values that come apart. */
#define RESPCMD_MAX_LINE ((size_t)65536)   /* Bytes of an inline command. */
#define RESPCMD_MAX_ARGS 65536
#define RESPCMD_APART    ((size_t)4096) /* Longer values come apart. */
/* Limit of an announced value. A value that is too large for the store is still read to its end. */
#define RESPCMD_MAX_VALUE ((size_t)512 << 20)
/* Limits for a client that is not authenticated. */
#define RESPCMD_WARY_ARGS 10
#define RESPCMD_WARY_BULK ((size_t)16384)

enum respcmd_id {
#define CMD(id, name, arity, flags, first, last, step, value, value_step) RESPCMD_##id,
#include "policy/kv/respcmd/respcmd.def"
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
enum respcmd_id respcmd_find(struct cgn_str name); /* |name| in any case. */
bool respcmd_arity_ok(enum respcmd_id id, size_t n_args);

/* ---- the stream ---- */
struct respcmd_arg {
	uint32_t at, n; /* at == RESPCMD_IS_APART: |n| is the number of the value that came apart. */
};
#define RESPCMD_IS_APART UINT32_MAX
struct respcmd {
	bool wary; /* The client is not authenticated yet. */
	bool crlf; /* The CRLF behind a value that came apart is due. */
	uint32_t due, n_apart;
	uint32_t n, cap;
	struct respcmd_arg *args; /* |few|, or on the heap. */
	struct respcmd_arg few[8];
	enum respcmd_id id; /* Set once the command's name was read. */
	size_t at;          /* Bytes of the text that were read. */
	size_t value;       /* RESPCMD_VALUE: bytes of the value that follow. */
};
void respcmd_init(struct respcmd *c);
void respcmd_reset(struct respcmd *c); /* Prepare for the next command; |wary| stays. */
void respcmd_fini(struct respcmd *c);

enum respcmd_outcome {
	RESPCMD_MORE, /* Call again with more text. */
	/* A whole command: |at| bytes of text, |n| arguments. No arguments: an empty line; nothing to do. */
	RESPCMD_GOT,
	/* |value| bytes follow that do not belong to the text. Take them, then call again: the text continues
	 * behind them. */
	RESPCMD_VALUE,
	/* |*why| is the error text for the client, behind "-ERR "; the stream cannot be continued. */
	RESPCMD_BAD,
};
/* Read more of the command. |text| begins at the command's first byte at each call, and has none of the
 * values that came apart. */
enum respcmd_outcome respcmd_step(struct respcmd *c, struct cgn_str text, const char **why);
/* Argument |i| of a command that was read up to there at least; empty if the argument came apart. */
struct cgn_str respcmd_arg(const struct respcmd *c, struct cgn_str text, size_t i);

/* ---- arguments ---- */
/* Read the block that |key| means. "HEX64" and "HEX64:segment" are the digest itself. Any other key has the
 * digest BLAKE3(tag, key), and false is returned: the caller must store the name with the block. */
bool respcmd_key(struct cgn_str key, struct digest *digest, uint32_t *segment);
/* As Redis reads an integer: no '+', no leading zeros, no space. */
bool respcmd_int(struct cgn_str s, int64_t *out);
/* Turn GETRANGE's inclusive ends into offset and length in a value of |size| bytes; negative ends count from
 * the value's end. Empty range: *n is 0. */
void respcmd_range(int64_t first, int64_t last, uint64_t size, uint64_t *off, uint64_t *n);

/* Options of SET key value. */
struct respcmd_set {
	bool only_new, only_old, keep_ttl, get;
	uint64_t expires_unix_ms; /* 0: never. */
};
/* Read SET's options from argument |from|. Returns NULL, or the error text without its "-". */
const char *respcmd_set_options(const struct respcmd *c, struct cgn_str text, size_t from, uint64_t now_ms,
	struct respcmd_set *out);
/* *out = |base_ms| + |amount| * |unit_ms|, in Unix ms (|base_ms| 0: |amount| is absolute). False: not
 * positive, or too large. */
bool respcmd_expiry(int64_t amount, uint64_t unit_ms, uint64_t base_ms, uint64_t *out);
