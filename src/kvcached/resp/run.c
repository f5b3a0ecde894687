/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses and runs a command, when it may run. */
#include "base/log/log.h"
#include "kvcached/resp/command_priv.h"

static resp_command *const commands[RESPCMD_UNKNOWN] = {[RESPCMD_GET] = resp_get,
	[RESPCMD_SET] = resp_set,
	[RESPCMD_EXISTS] = resp_exists,
	[RESPCMD_TOUCH] = resp_exists,
	[RESPCMD_MGET] = resp_mget,
	[RESPCMD_MSET] = resp_mset,
	[RESPCMD_MSETNX] = resp_mset,
	[RESPCMD_DEL] = resp_del,
	[RESPCMD_UNLINK] = resp_del,
	[RESPCMD_PING] = resp_ping,
	[RESPCMD_STRLEN] = resp_strlen,
	[RESPCMD_GETRANGE] = resp_getrange,
	[RESPCMD_SUBSTR] = resp_getrange,
	[RESPCMD_GETDEL] = resp_getdel,
	[RESPCMD_GETSET] = resp_getset,
	[RESPCMD_SETNX] = resp_setnx,
	[RESPCMD_SETEX] = resp_setex,
	[RESPCMD_PSETEX] = resp_setex,
	[RESPCMD_EXPIRE] = resp_expire,
	[RESPCMD_PEXPIRE] = resp_expire,
	[RESPCMD_EXPIREAT] = resp_expire,
	[RESPCMD_PEXPIREAT] = resp_expire,
	[RESPCMD_TTL] = resp_ttl,
	[RESPCMD_PTTL] = resp_ttl,
	[RESPCMD_PERSIST] = resp_persist,
	[RESPCMD_TYPE] = resp_type,
	[RESPCMD_SCAN] = resp_scan,
	[RESPCMD_DBSIZE] = resp_dbsize,
	[RESPCMD_ECHO] = resp_echo,
	[RESPCMD_INFO] = resp_info,
	[RESPCMD_HELLO] = resp_hello,
	[RESPCMD_AUTH] = resp_auth,
	[RESPCMD_CLIENT] = resp_client,
	[RESPCMD_COMMAND] = resp_command_info,
	[RESPCMD_CONFIG] = resp_config,
	[RESPCMD_SELECT] = resp_select,
	[RESPCMD_TIME] = resp_time,
	[RESPCMD_QUIT] = resp_quit,
	[RESPCMD_RESET] = resp_reset};

/* Add foreign text to a reply line. Line breaks become spaces, as in Redis. */
static void put_visible(struct cgn_buf *b, struct cgn_str s, size_t most)
{
	for (size_t i = 0; i < s.n && i < most; i++)
		cgn_buf_char(b, s.p[i] == '\r' || s.p[i] == '\n' ? ' ' : s.p[i]);
}

static void run_unknown(struct resp_conn *c)
{
	char text[400];
	struct cgn_buf b = cgn_buf_over(text, sizeof text);
	cgn_buf_putz(&b, "-ERR unknown command '");
	put_visible(&b, resp_arg(c, 0), 128);
	cgn_buf_putz(&b, "', with args beginning with: ");
	for (size_t i = 1; i < c->cmd.n && b.n < 256; i++) {
		cgn_buf_char(&b, '\'');
		put_visible(&b, resp_arg(c, i), 256 - b.n);
		cgn_buf_putz(&b, "' ");
	}
	cgn_buf_putz(&b, "\r\n");
	resp_put(c, b.p, b.n);
}

/* A web page can make a browser send an HTTP request to any port of its machine, with commands in the lines of its
 * body. Every such request has a line that begins with POST or Host:, before the body. Redis ends these
 * connections too. */
static bool is_http(const struct resp_conn *c)
{
	return resp_arg_is(c, 0, "post") || resp_arg_is(c, 0, "host:");
}

static void http_refuse(struct resp_conn *c)
{
	uint64_t n = atomic_fetch_add(&c->port->shared->http_refused, 1) + 1;
	cgn_log_limited(WARN, "resp.http_request", F_STR("peer", net_peer(c->net).p), F_U64("since_start", n),
		F_STR("why",
			"HTTP was sent to the Redis port; a web page may try to reach the store through a browser"),
		F_STR("then", "the connection is closed, nothing of the request's body was run"));
	resp_close(c);
}

enum resp_did resp_run(struct resp_conn *c)
{
	enum respcmd_id id = c->cmd.id;
	atomic_fetch_add_explicit(&c->port->shared->commands, !c->pending, memory_order_relaxed);
	if (id == RESPCMD_UNKNOWN && is_http(c)) {
		http_refuse(c);
		return RESP_DONE;
	}
	if (id == RESPCMD_UNKNOWN) {
		run_unknown(c);
		return RESP_DONE;
	}
	const struct respcmd_row *row = &respcmd_rows[id];
	if (!respcmd_arity_ok(id, c->cmd.n)) {
		resp_fmt(c, "-ERR wrong number of arguments for '%s' command\r\n", row->name);
		return RESP_DONE;
	}
	if (!c->authed && (row->flags & RESPCMD_EARLY) == 0) {
		resp_error(c, "NOAUTH Authentication required.");
		return RESP_DONE;
	}
	/* A write must not overtake an earlier read that still waits. */
	if (resp_full(c) || ((row->flags & RESPCMD_READS) == 0 && !cgn_list_empty(&c->replies)))
		return RESP_LATER;
	struct cgn_err err;
	if (c->fault[0] == '\0' && !cgn_ok(resp_may(c, &err)))
		resp_fault_set(c, &err);
	if (c->fault[0] != '\0') {
		resp_error(c, c->fault);
		return RESP_DONE;
	}
	return commands[id](c);
}
