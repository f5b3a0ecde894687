/* SPDX-License-Identifier: Apache-2.0 */
/* kvmodel: the answers that a block store may give. Clients record each command before they send it and when its answer has come;
 * between two moments at which no client waits (a barrier), the commands of each key must have an order that explains
 * all answers. A version is a value that was written once; version 0: there is none. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_KEYS     48U
#define KV_VERSIONS 256U
enum kv_kind {
	KV_READ, /* result: the version */
	KV_WRITE,
	KV_WRITE_NEW, /* only if there is none; result: 1 written, 0 not */
	KV_SWAP,      /* result: the version before */
	KV_REMOVE,    /* result: 1: there was one */
	KV_LOOK       /* result: 1: there is one */
};
enum kv_end {
	KV_WAITS, /* No answer: it may have happened or not */
	KV_DONE,
	KV_REFUSED /* An error: it did not happen */
};
struct kv_op {
	enum kv_kind kind;
	enum kv_end end;
	unsigned key, version, result;
	uint64_t from, to;
};

void kv_model_begin(unsigned keys);
/* Begin a command: of a key that has room for one more; |want| is any key. NULL: no key has. For writes, |*version| is new. */
struct kv_op *kv_begin(enum kv_kind kind, unsigned want);
void kv_end(struct kv_op *op, enum kv_end end, unsigned result);
/* A barrier: no client waits. Fails the world when an answer cannot be explained. |may_vanish|: values may have been
 * evicted since the last barrier. */
void kv_barrier(bool may_vanish);
/* Call at a barrier, when the values of now have reached the disk. |may_lack|: values may be missing there, but no older
 * ones are there. */
void kv_settled(bool may_lack);
/* The store has ended, after a barrier: it comes back with what had settled or anything since. |keeps| false: with nothing;
 * |may_return|: or with anything older. */
void kv_lost(bool keeps, bool may_lack, bool may_return);
/* The key's version if it is certain, -1 if not. */
int kv_certain(unsigned key);
uint64_t kv_written(void); /* Bytes of all writes */

/* ---- values ---- */
size_t kv_value_size(unsigned key, unsigned version);
void kv_value_make(unsigned key, unsigned version, char *out);
/* Return the version whose value this is; fails the world if it is none of the key's. */
unsigned kv_value_version(unsigned key, const char *p, size_t n);
