/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about the connection itself. */
#include "base/crypto/crypto.h"
#include "joint/daemon/svc/svc.h"
#include "joint/who/audit/audit.h"
#include "kvcached/resp/command_priv.h"

#define LIST_MOST 256 /* connections that CLIENT LIST reports */

enum resp_did resp_ping(struct resp_conn *c)
{
	if (c->cmd.n > 2)
		resp_error(c, "ERR wrong number of arguments for 'ping' command");
	else if (c->cmd.n == 2)
		resp_bulk(c, resp_arg(c, 1));
	else
		resp_putz(c, "+PONG\r\n");
	return RESP_DONE;
}

enum resp_did resp_echo(struct resp_conn *c)
{
	resp_bulk(c, resp_arg(c, 1));
	return RESP_DONE;
}

enum resp_did resp_quit(struct resp_conn *c)
{
	resp_ok(c);
	resp_close(c);
	return RESP_DONE;
}

enum resp_did resp_select(struct resp_conn *c)
{
	int64_t db;
	if (!resp_number(c, 1, &db))
		return RESP_DONE;
	if (db == 0)
		resp_ok(c);
	else
		resp_error(c, "ERR DB index is out of range");
	return RESP_DONE;
}

enum resp_did resp_time(struct resp_conn *c)
{
	char s[24], us[24];
	uint64_t now = cgn_clock_wall_ms();
	(void)snprintf(s, sizeof s, "%llu", (unsigned long long)(now / 1000));
	(void)snprintf(us, sizeof us, "%llu", (unsigned long long)(now % 1000 * 1000));
	resp_array(c, 2);
	resp_bulk(c, cgn_str_of(s));
	resp_bulk(c, cgn_str_of(us));
	return RESP_DONE;
}

/* ---- authentication ---- */

static bool password_is(const struct resp_conn *c, struct cgn_str user, struct cgn_str password)
{
	struct sha256 sum = crypto_sha256(password);
	bool right = crypto_equal(sum.b, c->port->shared->password, sizeof sum.b);
	return right && (user.n == 0 || cgn_str_is(user, "default")) && c->port->shared->has_password;
}

/* Returns false, after the error reply, when the password is wrong. */
static bool log_in(struct resp_conn *c, struct cgn_str user, struct cgn_str password)
{
	bool right = password_is(c, user, password) ||
		(!c->port->shared->has_password && cgn_str_is(user, "default"));
	if (right) {
		c->authed = true;
		c->may = 0;
		return true;
	}
	audit_note(svc_audit(c->port->worker->daemon->svc),
		&(struct audit_event){.action = "resp.auth",
			.decision = AUDIT_REFUSED,
			.kind = CGN_STR("address"),
			.from = net_peer(c->net),
			.object = CGN_STR("the Redis port"),
			.why = CGN_STR("wrong password or user")});
	resp_error(c, "WRONGPASS invalid username-password pair or user is disabled.");
	return false;
}

enum resp_did resp_auth(struct resp_conn *c)
{
	struct cgn_str user = c->cmd.n == 3 ? resp_arg(c, 1) : (struct cgn_str){0};
	if (c->cmd.n > 3)
		resp_error(c, "ERR syntax error");
	else if (c->cmd.n == 2 && !c->port->shared->has_password)
		resp_error(c,
			"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?");
	else if (log_in(c, user, resp_arg(c, c->cmd.n - 1)))
		resp_ok(c);
	return RESP_DONE;
}

/* ---- permissions ---- */

/* Set the action that the command needs; false: none. */
static bool action_find(enum respcmd_id id, enum identity_action *out)
{
	unsigned flags = respcmd_rows[id].flags;
	if (id == RESPCMD_DEL || id == RESPCMD_UNLINK || id == RESPCMD_GETDEL)
		*out = ACTION_KV_ADMIN;
	else
		*out = (flags & RESPCMD_WRITES) != 0 ? ACTION_KV_WRITE : ACTION_KV_READ;
	return (flags & (RESPCMD_WRITES | RESPCMD_READS)) != 0;
}

/* Describe the client: who gave the password has kv.resp_role. */
static void client_describe(const struct resp_conn *c, struct access *a, struct principal *out)
{
	const struct resp_port *p = c->port;
	struct cgn_str from = net_peer(c->net);
	*out = (struct principal){.from = from, .local = identity_is_local(from)};
	if (!p->shared->has_password)
		return;
	struct identity_roles *t = access_roles(a);
	out->kind = IDENTITY_KEY;
	out->name = CGN_STR("default");
	(void)identity_role_find(t, cgn_str_of(p->worker->daemon->cfg->kv.resp_role), &out->roles);
	identity_roles_unref(&t);
}

CGN_RC resp_may(struct resp_conn *c, struct cgn_err *err)
{
	enum identity_action action;
	struct access *a = svc_access(c->port->worker->daemon->svc);
	struct principal who;
	if (!action_find(c->cmd.id, &action) || (c->may >> action & 1) != 0)
		return CGN_OK;
	client_describe(c, a, &who);
	CGN_TRY(access_check(a, &who, action, (struct cgn_str){0}, err));
	c->may |= UINT32_C(1) << action;
	return CGN_OK;
}

/* Whether |s| is visible text without spaces. */
static bool tag_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] < '!' || s.p[i] > '~')
			return false;
	return s.n < RESP_MAX_TAGS;
}

static bool tag_set(struct resp_conn *c, char *to, struct cgn_str s, const char *what)
{
	if (!tag_ok(s)) {
		resp_fmt(c,
			"-ERR %s cannot contain spaces, newlines or special characters, nor more than %d bytes.\r\n",
			what, RESP_MAX_TAGS - 1);
		return false;
	}
	return cgn_str_copyz(to, RESP_MAX_TAGS, s);
}

static void hello_map(struct resp_conn *c)
{
	resp_map(c, 7);
	resp_bulk(c, CGN_STR("server"));
	resp_bulk(c, CGN_STR("redis"));
	resp_bulk(c, CGN_STR("version"));
	resp_bulk(c, CGN_STR(RESP_VERSION));
	resp_bulk(c, CGN_STR("proto"));
	resp_int(c, c->resp3 ? 3 : 2);
	resp_bulk(c, CGN_STR("id"));
	resp_int(c, (int64_t)c->id);
	resp_bulk(c, CGN_STR("mode"));
	resp_bulk(c, CGN_STR("standalone"));
	resp_bulk(c, CGN_STR("role"));
	resp_bulk(c, CGN_STR("master"));
	resp_bulk(c, CGN_STR("modules"));
	resp_array(c, 0);
}

/* Read the options of HELLO. Changes nothing when one of them is wrong. */
static bool hello_options(struct resp_conn *c, struct cgn_str *name)
{
	size_t auth_at = 0;
	for (size_t i = 2; i < c->cmd.n;) {
		if (resp_arg_is(c, i, "auth") && i + 2 < c->cmd.n) {
			auth_at = i;
			i += 3;
		} else if (resp_arg_is(c, i, "setname") && i + 1 < c->cmd.n) {
			*name = resp_arg(c, i + 1);
			i += 2;
		} else {
			resp_error(c, "ERR Syntax error in HELLO option");
			return false;
		}
	}
	if (auth_at > 0)
		return log_in(c, resp_arg(c, auth_at + 1), resp_arg(c, auth_at + 2));
	if (!c->authed)
		resp_error(c,
			"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time");
	return c->authed;
}

enum resp_did resp_hello(struct resp_conn *c)
{
	int64_t version = c->resp3 ? 3 : 2;
	struct cgn_str name = {0};
	if (c->cmd.n > 1 && !respcmd_int(resp_arg(c, 1), &version)) {
		resp_error(c, "ERR Protocol version is not an integer or out of range");
		return RESP_DONE;
	}
	if (version != 2 && version != 3) {
		resp_error(c, "NOPROTO unsupported protocol version");
		return RESP_DONE;
	}
	if (!hello_options(c, &name) || (name.p != NULL && !tag_set(c, c->client.name, name, "Client names")))
		return RESP_DONE;
	c->resp3 = version == 3;
	hello_map(c);
	return RESP_DONE;
}

enum resp_did resp_reset(struct resp_conn *c)
{
	c->resp3 = false;
	c->authed = !c->port->shared->has_password;
	c->may = 0;
	c->client.name[0] = '\0';
	resp_putz(c, "+RESET\r\n");
	return RESP_DONE;
}

/* ---- CLIENT ---- */

static void line_of(const struct resp_conn *c, struct cgn_buf *b)
{
	cgn_nsec now = cgn_loop_now(c->port->loop);
	cgn_buf_fmt(b, "id=%llu addr=", (unsigned long long)c->id);
	cgn_buf_str(b, net_peer(c->net));
	cgn_buf_fmt(b,
		" name=%s age=%llu idle=%llu flags=N db=0 qbuf=%zu obl=%zu resp=%d lib-name=%s lib-ver=%s\n",
		c->client.name, (unsigned long long)(cgn_since(now, c->opened) / CGN_SEC),
		(unsigned long long)(cgn_since(now, c->heard) / CGN_SEC), c->in.n, net_queued(c->net),
		c->resp3 ? 3 : 2, c->client.lib_name, c->client.lib_ver);
}

static void client_lines(struct resp_conn *c, bool all)
{
	struct cgn_buf b = {0};
	size_t n = 0;
	if (!all)
		line_of(c, &b);
	for (struct cgn_link *l = c->port->conns.next; all && l != &c->port->conns && n < LIST_MOST;
		l = l->next, n++)
		line_of(CGN_CONTAINER(l, struct resp_conn, link), &b);
	resp_bulk(c, cgn_buf_view(&b));
	cgn_buf_fini(&b);
}

static void set_info(struct resp_conn *c)
{
	bool name = resp_arg_is(c, 2, "lib-name");
	if (!name && !resp_arg_is(c, 2, "lib-ver"))
		resp_error(c, "ERR Unrecognized option");
	else if (tag_set(c, name ? c->client.lib_name : c->client.lib_ver, resp_arg(c, 3),
			 name ? "lib-name" : "lib-ver"))
		resp_ok(c);
}

/* Whether the command is CLIENT |word| with |n| arguments in all. */
static bool sub_is(const struct resp_conn *c, const char *word, size_t n)
{
	return resp_arg_is(c, 1, word) && c->cmd.n == n;
}

enum resp_did resp_client(struct resp_conn *c)
{
	if (sub_is(c, "setinfo", 4))
		set_info(c);
	else if (sub_is(c, "setname", 3)) {
		if (tag_set(c, c->client.name, resp_arg(c, 2), "Client names"))
			resp_ok(c);
	} else if (sub_is(c, "getname", 2)) {
		if (c->client.name[0] != '\0')
			resp_bulk(c, cgn_str_of(c->client.name));
		else
			resp_nil(c);
	} else if (sub_is(c, "id", 2))
		resp_int(c, (int64_t)c->id);
	else if (sub_is(c, "info", 2) || sub_is(c, "list", 2))
		client_lines(c, resp_arg_is(c, 1, "list"));
	else if ((sub_is(c, "no-evict", 3) || sub_is(c, "no-touch", 3)) &&
		(resp_arg_is(c, 2, "on") || resp_arg_is(c, 2, "off")))
		resp_ok(c); /* connections are not evicted, and every read counts as a use */
	else if ((sub_is(c, "reply", 3) && resp_arg_is(c, 2, "on")) ||
		(sub_is(c, "tracking", 3) && resp_arg_is(c, 2, "off")))
		resp_ok(c);
	else
		resp_error(c,
			"ERR unknown subcommand or wrong number of arguments. Here are SETINFO, SETNAME, GETNAME, ID, INFO, LIST, NO-EVICT, NO-TOUCH.");
	return RESP_DONE;
}
