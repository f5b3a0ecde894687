/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of the Redis port, and their arguments. */
#pragma once
#include "kvcached/resp/resp_priv.h"

typedef enum resp_did resp_command(struct resp_conn *c);
enum resp_did resp_run(struct resp_conn *c);
struct cgn_str resp_arg(const struct resp_conn *c, size_t i);
bool resp_arg_is(const struct resp_conn *c, size_t i, const char *word);
/* Read the key in argument |i|. Returns false, after an error reply, when it is too long. |name|: the name to
 * store with the block. */
bool resp_key(struct resp_conn *c, size_t i, struct block_key *k, struct cgn_str *name);
bool resp_number(struct resp_conn *c, size_t i, int64_t *out); /* returns false after an error reply */
/* May the client run the command that was read? On refusal |err| says why. */
CGN_RC resp_may(struct resp_conn *c, struct cgn_err *err);

/* write.c */
/* A value of cmd.value bytes follows: open its writer. Returns false when there is no room yet. */
bool resp_value_begins(struct resp_conn *c);
void resp_values_drop(struct resp_conn *c);
void resp_fault_set(struct resp_conn *c, const struct cgn_err *err); /* the first fault stays */
resp_command resp_set, resp_mset, resp_setnx, resp_setex, resp_getset;
/* read.c */
resp_command resp_get, resp_mget, resp_getrange, resp_getdel;
/* Bring the value of |k| to RAM and hold it as c->fetched, so that the command, which runs again then, finds it there.
 * RESP_DONE: it cannot be read, and the error was replied. */
enum resp_did resp_fetch(struct resp_conn *c, const struct block_key *k);
/* keys.c */
resp_command resp_exists, resp_del, resp_strlen, resp_expire, resp_ttl, resp_persist, resp_type, resp_scan;
/* client.c */
resp_command resp_ping, resp_echo, resp_hello, resp_auth, resp_client, resp_select, resp_time, resp_quit,
	resp_reset;
/* info.c */
resp_command resp_dbsize, resp_info, resp_config, resp_command_info;
