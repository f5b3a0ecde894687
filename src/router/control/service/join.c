/* SPDX-License-Identifier: Apache-2.0 */
/* join: makes invites, and signs the certificates of machines that come with one (docs/change/adr/0023). An invite is claimed
 * for a key in the state backend before anything is signed: routers that share etcd, and a router that dies, accept it
 * once. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/net/net/addr.h"
#include "io/net/pki/request.h"
#include "io/os/disk/disk.h"
#include "policy/who/invite/invite.h"
#include "policy/who/rate/rate.h"
#include "router/control/service/service_priv.h"
#include "router/shared/age/age.h"

#define PEM_LIMIT     ((size_t)256 << 10)
#define MAX_JOINS     64 /* Connections of machines that join at a time. */
#define MAX_MESSAGE   32768
#define GUARD_BUCKETS ((size_t)1024) /* Addresses whose attempts are counted. */
#define PER_MINUTE    60             /* Attempts of an address. */
#define DAY           86400
#define SKEW          300 /* Allowance in seconds for clocks of other machines that are behind. */
#define DEFAULT_DAYS  365
#define MOST_DAYS     3650
#define MOST_TTL_MS   ((uint64_t)30 * DAY * 1000)
#define MAX_SANS      32

/* The attempts to join, by address; those of an IPv6 /64 count together. */
struct router_join_guard {
	struct rate_table *attempts;
	struct rate rate;
	struct digest seed;
};

/* Request of a machine, or an invite that is to be stored. */
struct router_join {
	struct invite invite;
	struct invite_request rq;
	Cognitora__V1__JoinRequest *message; /* NULL: an invite. */
	struct pki_request_info wants;
	struct identity_uri uri; /* Borrowed from |wants|. */
};

/* Free the request to join, or for an invite, unless the state backend works on it. */
static void join_stop(struct router_call *k)
{
	struct router_join *j = k->pending ? NULL : CGN_TAKE(&k->join);
	if (j == NULL)
		return;
	if (j->message != NULL && j->message->secret.data != NULL)
		crypto_wipe(j->message->secret.data, j->message->secret.len);
	pb_free(&j->message);
	free(j);
}

static void join_start(struct router_call *k)
{
	k->join = CGN_NEW(struct router_join);
	k->stop = join_stop;
}

static int64_t unix_now(void)
{
	return (int64_t)(cgn_clock_wall_ms() / 1000);
}

static struct cgn_str bytes_of(const ProtobufCBinaryData *b)
{
	return (struct cgn_str){(const char *)b->data, b->len};
}

/* ---- the authority ---- */

/* Read the CA and its key. The key is in memory only while something is signed. */
static CGN_RC authority_read(const struct router *r, struct pki_pair *out, struct cgn_err *err)
{
	CGN_TRY(disk_read_file(r->cfg->security.ca_file, PEM_LIMIT, &out->cert, err));
	CGN_TRY(disk_read_file(r->cfg->security.ca_key_file, PEM_LIMIT, &out->key, err));
	(void)cgn_buf_z(&out->cert);
	(void)cgn_buf_z(&out->key);
	if (pki_is_pair(cgn_buf_view(&out->cert), cgn_buf_view(&out->key)))
		return CGN_OK;
	return CGN_FAIL(err, TLS, "security.ca_key_file %s is not the key of the first certificate of %s",
		r->cfg->security.ca_key_file, r->cfg->security.ca_file);
}

/* ---- invites ---- */

static void invite_done(void *user, const struct cgn_err *err);

/* Is it a host name or an address? A wildcard would stand for hosts of others too. */
static bool is_host(struct cgn_str name)
{
	for (size_t i = 0; i < name.n; i++) {
		char ch = name.p[i];
		bool is_letter = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z');
		if (!is_letter && !(ch >= '0' && ch <= '9') && (ch == '\0' || strchr(".:-_", ch) == NULL))
			return false;
	}
	return name.n > 0;
}

static CGN_RC invite_read(const Cognitora__V1__InviteRequest *rq, struct invite *out, struct cgn_err *err)
{
	size_t at = 0;
	if (rq->secret_sha256.len != sizeof out->secret.b)
		return CGN_FAIL(err, INVALID, "the hash of the invite's secret has not 32 bytes");
	if (!cgn_str_copyz(out->id, sizeof out->id, cgn_str_of(rq->id)) ||
		!cgn_str_copyz(out->role, sizeof out->role, cgn_str_of(rq->role)) ||
		!cgn_str_copyz(out->node, sizeof out->node, cgn_str_of(rq->node)))
		return CGN_FAIL(err, INVALID, "the invite's id, role or node is too long");
	for (size_t i = 0; i < rq->n_names; i++) {
		int n = snprintf(out->sans + at, sizeof out->sans - at, "%s%s", i > 0 ? "," : "",
			rq->names[i]);
		at += (size_t)n;
		if (i >= MAX_SANS || at >= sizeof out->sans || !is_host(cgn_str_of(rq->names[i])))
			return CGN_FAIL(err, INVALID,
				"the names of an invite are at most %d host names and addresses without wildcards, %d bytes",
				MAX_SANS, INVITE_MAX_SANS);
	}
	if (rq->ttl_ms == 0 || rq->ttl_ms > MOST_TTL_MS)
		return CGN_FAIL(err, INVALID, "an invite lasts more than 0 ms and at most 30 days");
	if (rq->days > MOST_DAYS)
		return CGN_FAIL(err, INVALID,
			"the certificate of an invite is valid for at most %d days, and at most as long as the CA",
			MOST_DAYS);
	memcpy(out->secret.b, rq->secret_sha256.data, sizeof out->secret.b);
	out->days = rq->days == 0 ? DEFAULT_DAYS : rq->days;
	out->ends = unix_now() + (int64_t)((rq->ttl_ms + 999) / 1000);
	return CGN_OK;
}

/* A caller invites only to a role that the caller holds. */
static CGN_RC invite_may(const struct router_call *k, struct cgn_err *err)
{
	struct principal who;
	access_caller(svc_access(k->r->svc), k->c, &who);
	return access_check_gift(svc_access(k->r->svc), &who, cgn_str_of(k->join->invite.role), err);
}

static CGN_RC invite_put(struct router_call *k, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(invite_add(cgn_buf_view(&k->r->invites), &k->join->invite,
		(int64_t)gw_age_now(k->r->shared.age), &text, err));
	CGN_TRY(state_invites_put(k->r->members.state, cgn_buf_view(&text), invite_done, k, err));
	k->pending = true;
	return CGN_OK;
}

static CGN_RC invite_send(struct router_call *k, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair ca = {0};
	Cognitora__V1__InviteResponse rs = COGNITORA__V1__INVITE_RESPONSE__INIT;
	struct sha256 sum;
	CGN_TRY(authority_read(k->r, &ca, err));
	CGN_TRY(pki_fingerprint(cgn_buf_view(&ca.cert), &sum, err));
	rs.cluster = pb_text(k->r->cluster_name);
	rs.ca_sha256 = (ProtobufCBinaryData){sizeof sum.b, sum.b};
	rs.port = grpc_server_port(k->r->ports.join);
	rs.ends = (uint64_t)k->join->invite.ends;
	router_call_send(k, &rs);
	return CGN_OK;
}

static void invite_object(const struct invite *i, char out[400])
{
	(void)snprintf(out, 400, "%s %s %s", i->id, i->role, i->node[0] != '\0' ? i->node : "(any node)");
}

static void invite_done(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	struct cgn_err again = *err;
	char object[400];
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->pending = false;
	if (err->code == CGN_CONFLICT && ++k->tries < ROUTER_CALL_TRIES && cgn_ok(invite_put(k, &again)))
		return;
	if (again.code == CGN_FINE && k->c != NULL)
		(void)cgn_ok(invite_send(k, &again));
	invite_object(&k->join->invite, object);
	router_order_note(k, "node.invite", object, &again);
	if (again.code == CGN_FINE)
		cgn_log(INFO, "router.invite", F_STR("invite", k->join->invite.id),
			F_STR("role", k->join->invite.role), F_STR("node", k->join->invite.node),
			F_STR("by", k->by), F_STR("from", k->from));
	router_call_finish(k, again.code, again.code == CGN_FINE ? "" : again.msg);
	router_call_release(k);
}

static CGN_RC invite_start(struct router_call *k, struct cgn_str message, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__InviteRequest *rq = NULL;
	CGN_TRY(pb_unpack(&cognitora__v1__invite_request__descriptor, message, &rq, err));
	CGN_TRY(router_call_may(k, ACTION_NODE_INVITE, rq->node, err));
	if (k->r->ports.join == NULL)
		return CGN_FAIL(err, UNSUPPORTED,
			"this router cannot sign certificates: set security.ca_key_file, or invite at the router that has it");
	join_start(k);
	CGN_TRY(invite_read(rq, &k->join->invite, err));
	CGN_TRY(invite_may(k, err));
	return invite_put(k, err);
}

void router_invite(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	cgn_rc rc = invite_start(k, message, &err);
	if (!cgn_ok(rc))
		router_call_finish(k, rc.code, err.msg);
}

/* ---- joining ---- */

static void join_claimed(void *user, const struct cgn_err *err);

static void join_note(const struct router_call *k, const struct cgn_err *err, const char *serial)
{
	const struct router_join *j = k->join;
	bool good = err->code == CGN_FINE;
	char object[700];
	(void)snprintf(object, sizeof object, "invite %.16s: %s, certificate %s",
		j->invite.id[0] != '\0' ? j->invite.id : j->message->id, j->wants.uri,
		good ? serial : "none");
	audit_note(k->r->shared.audit,
		&(struct audit_event){.action = "node.join",
			.decision = good                       ? AUDIT_ALLOWED
				: err->code == CGN_UNAVAILABLE ? AUDIT_FAILED
							       : AUDIT_REFUSED,
			.kind = CGN_STR("token"),
			.from = cgn_str_of(k->from),
			.object = cgn_str_of(object),
			.why = good ? (struct cgn_str){0} : cgn_str_of(err->msg)});
	if (good)
		cgn_log(INFO, "router.joined", F_STR("invite", j->invite.id), F_STR("as", j->wants.uri),
			F_STR("certificate", serial), F_STR("from", k->from));
	else
		cgn_log_limited(WARN, "router.join_refused", F_STR("why", err->msg), F_STR("from", k->from));
}

/* Copy the caller's address without its port, as a certificate names it. */
static bool host_of(const char *from, char *out, size_t cap)
{
	const char *colon = strrchr(from, ':');
	bool bracketed = from[0] == '[' && colon > from && colon[-1] == ']';
	struct cgn_str host =
		colon == NULL ? cgn_str_of(from) : (struct cgn_str){from, (size_t)(colon - from)};
	if (bracketed)
		host = (struct cgn_str){from + 1, host.n - 2};
	return cgn_str_copyz(out, cap, host) && net_host_is_ip(out);
}

/* Read the request into k->join: the facts that the invite is judged by. */
static CGN_RC join_read(struct router_call *k, struct cgn_str message, struct cgn_err *err)
{
	struct router_join *j = k->join;
	CGN_TRY(pb_unpack(&cognitora__v1__join_request__descriptor, message, &j->message, err));
	if (j->message->secret.len != INVITE_SECRET)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token's secret has not %d bytes", INVITE_SECRET);
	CGN_TRY(pki_request_read(bytes_of(&j->message->request), &j->wants, err));
	if (!identity_uri_parse(cgn_str_of(j->wants.uri), &j->uri) ||
		!(cgn_str_is(j->uri.cluster, "-") || cgn_str_is(j->uri.cluster, k->r->cluster_name)))
		return CGN_FAIL(err, FORBIDDEN,
			"the request's URI name is not cognitora://%s/ROLE/NODE, or is of another cluster",
			k->r->cluster_name);
	if (!cgn_str_is(j->uri.node, j->wants.subject))
		return CGN_FAIL(err, FORBIDDEN, "the request's common name and URI name different nodes");
	j->rq = (struct invite_request){.id = cgn_str_of(j->message->id),
		.role = j->uri.role,
		.node = j->uri.node,
		.secret = crypto_sha256(bytes_of(&j->message->secret)),
		.key = j->wants.key};
	return CGN_OK;
}

/* Does the caller show a valid certificate of that agent? It may replace it while the agent runs. */
static bool is_itself(const struct router_call *k)
{
	struct principal who;
	if (k->c == NULL)
		return false;
	access_caller(svc_access(k->r->svc), k->c, &who);
	return who.kind == IDENTITY_CERT && (who.roles & IDENTITY_BIT(AGENT)) != 0 &&
		cgn_str_is(who.name, k->join->wants.subject);
}

static CGN_RC node_check(const struct router_call *k, struct cgn_err *err)
{
	const struct router_join *j = k->join;
	if (strcmp(j->invite.role, "agent") != 0 ||
		cluster_find(k->r->members.cluster, j->wants.subject) == NULL || is_itself(k))
		return CGN_OK;
	return CGN_FAIL(err, CONFLICT,
		"a node %s is in the cluster: join on that machine (--replace shows its certificate), or under another name; or stop its agent and wait for its lease",
		j->wants.subject);
}

/* The names of the certificate: those that the invite and this router vouch for, none of the request's. */
struct join_names {
	char uri[2][IDENTITY_URI_MAX + 1], host[64], sans[INVITE_MAX_SANS + 1];
	const char *list[MAX_SANS + 8];
};

static CGN_RC uri_make(const struct router *r, const char *role, const char *node,
	char out[IDENTITY_URI_MAX + 1], struct cgn_err *err)
{
	struct cgn_buf b = cgn_buf_over(out, IDENTITY_URI_MAX + 1);
	identity_uri_put(&(struct identity_uri){cgn_str_of(r->cluster_name), cgn_str_of(role),
				 cgn_str_of(node)},
		&b);
	(void)cgn_buf_z(&b);
	return b.bad ? CGN_FAIL(err, INVALID, "the names of cluster, role and node are too long together")
		     : CGN_OK;
}

static CGN_RC names_make(const struct router_call *k, struct join_names *out, struct cgn_err *err)
{
	const struct invite *i = &k->join->invite;
	size_t n = 0;
	CGN_TRY(uri_make(k->r, i->role, k->join->wants.subject, out->uri[0], err));
	out->list[n++] = out->uri[0];
	if (strcmp(i->role, "agent") == 0) { /* The node's block store uses the same certificate. */
		CGN_TRY(uri_make(k->r, "kvcached", k->join->wants.subject, out->uri[1], err));
		out->list[n++] = out->uri[1];
	}
	out->list[n++] = "localhost";
	out->list[n++] = "127.0.0.1";
	out->list[n++] = "::1";
	if (host_of(k->from, out->host, sizeof out->host) && strcmp(out->host, "127.0.0.1") != 0 &&
		strcmp(out->host, "::1") != 0)
		out->list[n++] = out->host;
	memcpy(out->sans, i->sans, sizeof out->sans);
	for (char *at = out->sans, *save = NULL; (at = strtok_r(at, ",", &save)) != NULL && n < MAX_SANS + 7;
		at = NULL)
		out->list[n++] = at;
	out->list[n] = NULL;
	return CGN_OK;
}

static CGN_RC join_sign(const struct router_call *k, struct cgn_buf *cert, struct cgn_buf *bundle,
	char serial[48], struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair ca = {0};
	struct join_names names = {0};
	struct pki_info in;
	int64_t now = unix_now(), to = now + (int64_t)k->join->invite.days * DAY;
	CGN_TRY(authority_read(k->r, &ca, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&ca.cert), &in, err));
	struct pki_validity when = {now - SKEW > in.when.from ? now - SKEW : in.when.from,
		to < in.when.to ? to : in.when.to};
	CGN_TRY(names_make(k, &names, err));
	CGN_TRY(pki_request_sign(&ca, bytes_of(&k->join->message->request), k->join->wants.subject,
		names.list, when, cert, err));
	CGN_TRY(pki_inspect(cgn_buf_view(cert), &in, err));
	(void)cgn_str_copyz(serial, 48, cgn_str_of(in.serial));
	cgn_buf_str(bundle, cgn_buf_view(&ca.cert));
	(void)cgn_buf_z(bundle);
	return cert->bad || bundle->bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : CGN_OK;
}

static void join_answer(struct router_call *k, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf cert = {0}, bundle = {0};
	Cognitora__V1__JoinResponse rs = COGNITORA__V1__JOIN_RESPONSE__INIT;
	char serial[48] = "", port[16];
	if (err->code == CGN_FINE && cgn_ok(join_sign(k, &cert, &bundle, serial, err))) {
		(void)snprintf(port, sizeof port, ":%u", grpc_server_port(k->r->ports.grpc));
		rs.certificate = pb_text(cgn_buf_z(&cert));
		rs.ca = pb_text(cgn_buf_z(&bundle));
		rs.cluster = pb_text(k->r->cluster_name);
		rs.router = port;
		router_call_send(k, &rs);
	}
	join_note(k, err, serial);
	router_call_finish(k, err->code, err->code == CGN_FINE ? "" : err->msg);
}

/* Judge the request and claim the invite. *done: the answer can be given now. */
static CGN_RC join_claim(struct router_call *k, bool *done, struct cgn_err *err)
{
	struct router_join *j = k->join;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_str invites = cgn_buf_view(&k->r->invites);
	int64_t now = unix_now();
	CGN_TRY(invite_judge(invites, &j->rq, now, &j->invite, done, err));
	CGN_TRY(node_check(k, err));
	if (*done)
		return CGN_OK;
	invite_claim(invites, &j->rq, (int64_t)gw_age_now(k->r->shared.age), &text);
	if (text.bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	CGN_TRY(state_invites_put(k->r->members.state, cgn_buf_view(&text), join_claimed, k, err));
	k->pending = true;
	return CGN_OK;
}

static void join_go(struct router_call *k, struct cgn_err *err)
{
	bool done = false;
	if (!cgn_ok(join_claim(k, &done, err)) || done)
		join_answer(k, err);
}

static void join_claimed(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	struct cgn_err why = *err;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->pending = false;
	if (err->code == CGN_CONFLICT && ++k->tries < ROUTER_CALL_TRIES) {
		why = (struct cgn_err){.code = CGN_FINE};
		join_go(k, &why); /* Another router wrote; the invite may be used by now. */
	} else {
		join_answer(k, &why);
	}
	router_call_release(k);
}

static void join_handle(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err = {.code = CGN_FINE};
	join_start(k);
	cgn_rc rc = join_read(k, message, &err);
	if (cgn_ok(rc)) {
		join_go(k, &err);
		return;
	}
	if (k->join->message != NULL)
		join_note(k, &err, "");
	router_call_finish(k, rc.code, err.msg);
}

/* ---- the port ---- */

/* Return the bucket of the address, as a keyed hash, so that addresses that share one cannot be chosen. */
static uint64_t address_key(const struct router_join_guard *g, struct cgn_str from)
{
	char group[NET_ADDR_GROUP_MAX];
	uint64_t key;
	net_addr_group(from, group);
	struct digest d = digest_keyed(&g->seed, cgn_str_of(group));
	memcpy(&key, &d, sizeof key);
	return key | 1;
}

static void on_join(struct grpc_call *c, void *user)
{
	struct router *r = user;
	struct router_join_guard *g = r->ports.guard;
	struct rate_answer a = rate_table_take(g->attempts, address_key(g, grpc_peer(c)), &g->rate,
		cgn_loop_now(r->loop), 1);
	if (a.granted)
		router_call_new(c, r, join_handle);
	else
		grpc_refuse(c, CGN_OVERLOADED, "too many attempts to join from this address; wait a minute");
}

static void guard_open(struct router *r)
{
	r->ports.guard = CGN_NEW(struct router_join_guard);
	r->ports.guard->rate = rate_per_minute(PER_MINUTE);
	cgn_random(&r->ports.guard->seed, sizeof r->ports.guard->seed);
	r->ports.guard->attempts = rate_table_new(GUARD_BUCKETS);
}

CGN_RC router_join_open(struct router *r, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", NULL};
	static const struct grpc_method methods[] = {{PROTO_JOIN, on_join, 0}};
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair ca = {0};
	if (r->cfg->security.ca_key_file == NULL)
		return CGN_OK;
	const struct tls_cfg tls = {.server = true,
		.ca_file = r->cfg->security.ca_file,
		.cert_file = r->cfg->security.cert_file,
		.key_file = r->cfg->security.key_file,
		.crl_file = r->cfg->security.crl_file,
		.ask_peer_cert = true,
		.sends_ca = true,
		.alpn = alpn};
	CGN_TRY(authority_read(r, &ca, err));
	guard_open(r);
	CGN_TRY(tls_ctx_new(&tls, &r->ports.join_tls, err));
	const struct grpc_server_cfg cfg = {.listen = {.addr = r->cfg->security.listen_join,
						    .setting = "security.listen_join",
						    .tls = r->ports.join_tls,
						    .max_conns = MAX_JOINS},
		.max_message = MAX_MESSAGE,
		.max_streams = 4,
		.methods = methods,
		.n_methods = CGN_COUNT(methods)};
	CGN_TRY(grpc_server_new(r->loop, &cfg, r, &r->ports.join, err));
	cgn_log(INFO, "router.join_port", F_U64("port", grpc_server_port(r->ports.join)));
	return CGN_OK;
}

void router_join_close(struct router *r)
{
	if (r->ports.join != NULL)
		grpc_server_free(&r->ports.join);
	tls_ctx_free(&r->ports.join_tls);
	if (r->ports.guard != NULL)
		rate_table_free(&r->ports.guard->attempts);
	free(r->ports.guard);
	r->ports.guard = NULL;
}
