/* SPDX-License-Identifier: Apache-2.0 */
/* kvcalls: clients of a block store that wait for each answer: the Redis port, and values by descriptor. On a fiber of a
 * process on the store's machine. Each call records itself in the model. False: the connection has ended. */
#pragma once
#include "kvmodel.h"

struct kvcall {
	int fd; /* -1: not connected */
	bool bulk;
	char *memory;
	size_t memory_bytes, max_inline;
	uint64_t ids;
	char *in;
	size_t n_in, room, at;
};
bool kvcall_open(struct kvcall *c, bool bulk, bool tcp);
void kvcall_close(struct kvcall *c);
bool kvcall_op(struct kvcall *c, enum kv_kind kind, unsigned key);
/* DBSIZE; -1: no connection */
long kvcall_count(struct kvcall *c);
