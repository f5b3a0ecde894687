/* SPDX-License-Identifier: Apache-2.0 */
/* door: how an engine is reached: its URL, key and TLS. */
#pragma once
#include "base/core/arena.h"
#include "base/weburl/weburl.h"
#include "io/os/loop/loop.h"
#include "policy/config/config.h"

struct http_client;
struct svc_problems;
struct tls_ctx;

struct engine_door {
	struct weburl url;
	char *authorization; /* "Bearer ..." in the arena of engine_door_open; NULL: the engine wants no key */
	struct tls_ctx *tls; /* NULL: in clear */
};
/* Read the URL, the key's file and the CA of |ce|. |section| is the table's name for errors: "engine". CGN_INVALID: one of them
 * cannot be used; CGN_NO_MEMORY. Close it also after a failure. */
CGN_RC engine_door_open(struct engine_door *d, const char *section, const struct config_engine *ce,
	struct cgn_arena *arena, struct cgn_err *err);
void engine_door_close(struct engine_door *d);
/* Make a pool of connections to |d|, which outlives it. */
CGN_RC engine_door_client(const struct engine_door *d, struct cgn_loop *l, uint32_t max_conns,
	struct http_client **out, struct cgn_err *err);
/* Note errors in the URL and the files, without opening anything. */
void engine_door_check(const char *section, const struct config_engine *ce, struct svc_problems *out);
