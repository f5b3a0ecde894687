/* SPDX-License-Identifier: Apache-2.0 */
/* fake: a small server of HTTP/1.1 as a process of the world, whose answers a function writes: a hook, an identity
 * provider, a hosted API that lies. With a certificate it speaks TLS; its files are read for each connection. */
#pragma once
#include "../world/world.h"
#include "base/core/str.h"

struct fake_talk;
struct fake_question {
	char method[16], path[512];
	struct cgn_str head, body; /* Borrowed until the function returns */
};
struct fake {
	const char *name;
	uint16_t port;
	const char *cert, *key; /* Paths on its machine; NULL: in clear */
	/* Answer on the fiber of the connection. Return false to end the connection. */
	bool (*serve)(struct fake_talk *t, const struct fake_question *q, void *user);
	void *user;
	unsigned questions; /* So far */
};
/* |f| stays the caller's, as long as the process. */
struct world_proc *fake_start(struct world_host *h, struct fake *f);
/* As world_start takes it; |argv| has room for three. */
world_main *fake_program(struct fake *f, const char **argv);
/* Send; false: the client has gone. */
bool fake_send(struct fake_talk *t, const char *p, size_t n);
/* Send an answer with its length. */
bool fake_reply(struct fake_talk *t, int status, const char *kind, struct cgn_str body);
/* Send the head of an answer that ends with the connection. */
bool fake_stream(struct fake_talk *t, int status, const char *kind);
