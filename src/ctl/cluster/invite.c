/* SPDX-License-Identifier: Apache-2.0 */
/* invite: a machine without certificates joins the cluster: node invite prints a token, node join uses it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/codec/codec.h"
#include "base/pb/pb.h"
#include "ctl/ctl.h"
#include "ctl/keys/pki_folder.h"
#include "io/net/pki/request.h"
#include "io/net/tls/tls.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/client/client.h"
#include "policy/node/proto/proto.h"
#include "policy/who/identity/identity.h"
#include "policy/who/invite/invite.h"

#define DEFAULT_TIMEOUT (15 * CGN_SEC)
#define MAX_SANS        32

/* ---- invite ---- */

struct inviting {
	Cognitora__V1__InviteRequest rq;
	struct invite_token token;
	char id[INVITE_ID_DIGITS + 1], address[320];
	char *names[MAX_SANS];
	struct sha256 secret;
};

static CGN_RC names_collect(const struct ctl_args *a, struct inviting *v, struct cgn_err *err)
{
	const char *name;
	for (size_t i = 0; (name = ctl_flag_nth(a, "--san", i)) != NULL; i++) {
		if (i == MAX_SANS)
			return CGN_FAIL(err, INVALID, "at most %d names (--san)", MAX_SANS);
		v->names[i] = pb_text(name);
		v->rq.n_names = i + 1;
	}
	v->rq.names = v->names;
	return CGN_OK;
}

static CGN_RC inviting_fill(const struct ctl_args *a, struct inviting *v, struct cgn_err *err)
{
	uint8_t id[INVITE_ID_DIGITS / 2];
	cgn_nsec ttl = 0;
	uint64_t days = 0;
	struct cgn_buf hex = cgn_buf_over(v->id, sizeof v->id);
	v->rq = (Cognitora__V1__InviteRequest)COGNITORA__V1__INVITE_REQUEST__INIT;
	CGN_TRY(ctl_flag_duration(a, "--ttl", &ttl, err));
	CGN_TRY(ctl_flag_u64(a, "--days", 1, 3650, &days, err));
	CGN_TRY(names_collect(a, v, err));
	cgn_random(id, sizeof id);
	cgn_random(v->token.secret, sizeof v->token.secret);
	hex_put(&hex, (struct cgn_str){(const char *)id, sizeof id});
	v->secret = crypto_sha256((struct cgn_str){(const char *)v->token.secret, sizeof v->token.secret});
	v->rq.id = pb_text(cgn_buf_z(&hex));
	v->rq.secret_sha256 = (ProtobufCBinaryData){sizeof v->secret.b, v->secret.b};
	v->rq.role = pb_text(ctl_flag(a, "--role"));
	v->rq.node = pb_text(ctl_flag(a, "--node") != NULL ? ctl_flag(a, "--node") : "");
	v->rq.ttl_ms = ttl / CGN_MSEC;
	v->rq.days = (uint32_t)days;
	return CGN_OK;
}

/* The machine joins at the host that we asked, on the port that it told, unless --address says another. */
static CGN_RC join_address(const struct ctl_args *a, uint32_t port, char out[320], struct cgn_err *err)
{
	char router[300];
	const char *given = ctl_flag(a, "--address");
	if (given != NULL)
		return cgn_str_copyz(out, 320, cgn_str_of(given))
			? CGN_OK
			: CGN_FAIL(err, INVALID, "--address is too long");
	CGN_TRY(ctl_router_address(a, router, err));
	char *colon = strrchr(router, ':');
	if (colon == NULL || strncmp(router, "unix:", 5) == 0)
		return CGN_FAIL(err, INVALID,
			"%s is not a host and a port: say with --address where machines reach the router",
			router);
	*colon = '\0';
	(void)snprintf(out, 320, "%s:%u", router, port);
	if (identity_is_local(cgn_str_of(out)))
		(void)fprintf(stderr,
			"cgn-ctl: %s is this machine: for others say with --address where they reach the router\n",
			out);
	return CGN_OK;
}

static void invited_put(const struct inviting *v, const Cognitora__V1__InviteResponse *rs,
	struct cgn_str token, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_str(&o, "token", token);
	json_key_z(&o, "id", v->id);
	json_key_z(&o, "cluster", rs->cluster);
	json_key_z(&o, "role", v->rq.role);
	json_key_z(&o, "node", v->rq.node);
	json_key_z(&o, "address", v->address);
	json_key_u64(&o, "ends", rs->ends);
	json_close(&o, '}');
}

static CGN_RC token_print(const struct ctl_args *a, struct inviting *v,
	const Cognitora__V1__InviteResponse *rs, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf token = {0};
	struct cgn_buf out = {0};
	if (rs->ca_sha256.len != sizeof v->token.ca)
		return CGN_FAIL(err, BAD_GATEWAY, "the router told no fingerprint of its CA");
	memcpy(v->token.ca, rs->ca_sha256.data, sizeof v->token.ca);
	CGN_TRY(join_address(a, rs->port, v->address, err));
	v->token.role = cgn_str_of(v->rq.role);
	v->token.node = cgn_str_of(v->rq.node);
	v->token.id = cgn_str_of(v->id);
	v->token.address = cgn_str_of(v->address);
	invite_token_put(&v->token, &token);
	if (a->json)
		invited_put(v, rs, cgn_buf_view(&token), &out);
	else
		cgn_buf_str(&out, cgn_buf_view(&token));
	cgn_buf_putz(&out, "\n");
	if (!a->json && ctl_is_terminal(1))
		(void)fprintf(stderr,
			"cgn-ctl: run on the machine that joins: cgn-ctl node join TOKEN --dir /etc/cognitora/pki\n");
	crypto_wipe(v->token.secret, sizeof v->token.secret);
	if (token.p != NULL)
		crypto_wipe(token.p, token.cap);
	return ctl_print(&out, err);
}

CGN_RC ctl_node_invite(const struct ctl_args *a, struct cgn_err *err)
{
	struct inviting v = {.id = ""};
	CGN_ON_EXIT(pb_free) Cognitora__V1__InviteResponse *rs = NULL;
	struct ctl_call call = {.method = "Invite",
		.answer = &cognitora__v1__invite_response__descriptor,
		.request = &v.rq,
		.first = &rs};
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(inviting_fill(a, &v, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	return token_print(a, &v, rs, err);
}

/* ---- join ---- */

struct joining {
	const char *dir;
	struct invite_token token;
	char token_text[INVITE_MAX_TOKEN + 2];
	char node[INVITE_MAX_NAME + 1], address[320];
	char key_file[PATH_MAX], cert_file[PATH_MAX], ca_file[PATH_MAX], new_key[PATH_MAX];
	struct cgn_buf key, request;
	bool replaces; /* There is a certificate of an earlier join: show it. */
	bool fresh;    /* This attempt made the key: no token is for it before the router has agreed. */
};

static void joining_fini(struct joining *j)
{
	if (j->key.p != NULL)
		crypto_wipe(j->key.p, j->key.cap);
	cgn_buf_fini(&j->key);
	cgn_buf_fini(&j->request);
	crypto_wipe(j->token_text, sizeof j->token_text);
	crypto_wipe(j->token.secret, sizeof j->token.secret);
}

/* Read the token: the word of the command line, or "-": from standard input, where other users cannot see it. */
static CGN_RC token_take(const struct ctl_args *a, struct joining *j, struct cgn_err *err)
{
	if (a->n_words != 1)
		return CGN_FAIL(err, INVALID, "name one token, as cgn-ctl node invite printed it");
	if (strcmp(a->words[0], "-") != 0) {
		if (!cgn_str_copyz(j->token_text, sizeof j->token_text, cgn_str_of(a->words[0])))
			return CGN_FAIL(err, INVALID, "this is not a token: it is too long");
	} else if (fgets(j->token_text, sizeof j->token_text, stdin) == NULL) {
		return CGN_FAIL(err, INVALID, "standard input has no token");
	}
	struct cgn_str text = cgn_str_of(j->token_text);
	while (text.n > 0 && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\r'))
		text.n--;
	return invite_token_read(text, &j->token, err);
}

static CGN_RC node_choose(const struct ctl_args *a, struct joining *j, struct cgn_err *err)
{
	const char *given = ctl_flag(a, "--node");
	char host[INVITE_MAX_NAME + 1] = "";
	struct cgn_str node = j->token.node;
	if (node.n > 0 && given != NULL && !cgn_str_is(node, given))
		return CGN_FAIL(err, INVALID, "the token is for the node %.*s, not for %s", (int)node.n,
			node.p, given);
	if (node.n == 0 && given != NULL)
		node = cgn_str_of(given);
	if (node.n == 0 && gethostname(host, sizeof host - 1) == 0)
		node = cgn_str_of(host);
	if (!identity_uri_part_ok(node) || node.n > 64 || !cgn_str_copyz(j->node, sizeof j->node, node))
		return CGN_FAIL(err, INVALID,
			"\"%.*s\" cannot be a node's name: 1 to 64 characters of A-Z a-z 0-9 . _ -; name one with --node",
			(int)node.n, node.p);
	return CGN_OK;
}

static CGN_RC files_choose(const struct ctl_args *a, struct joining *j, struct cgn_err *err)
{
	char role[INVITE_MAX_NAME + 1];
	j->dir = ctl_flag(a, "--dir");
	(void)cgn_str_copyz(role, sizeof role, j->token.role);
	CGN_TRY(pki_path(j->dir, role, ".key", j->key_file, err));
	CGN_TRY(pki_path(j->dir, role, ".pem", j->cert_file, err));
	CGN_TRY(pki_path(j->dir, role, ".key.new", j->new_key, err));
	CGN_TRY(pki_path(j->dir, "ca", ".pem", j->ca_file, err));
	j->replaces = access(j->cert_file, F_OK) == 0 && access(j->key_file, R_OK) == 0;
	if (access(j->cert_file, F_OK) == 0 && !ctl_switch(a, "--replace"))
		return CGN_FAIL(err, CONFLICT,
			"%s exists: this machine has joined already; --replace joins again, --dir names another folder",
			j->cert_file);
	return disk_mkdirs(j->dir, 0700, err);
}

/* Make the key, or take that of an attempt whose answer was lost: the token is for it. */
static CGN_RC key_prepare(struct joining *j, struct cgn_err *err)
{
	char uri[IDENTITY_URI_MAX];
	struct cgn_err why;
	if (!cgn_ok(disk_read_file(j->new_key, PKI_PEM_LIMIT, &j->key, &why))) {
		CGN_TRY(pki_make_key(&j->key, err));
		CGN_TRY(disk_write_file_atomic(j->new_key, cgn_buf_view(&j->key), 0600, err));
		j->fresh = true;
	}
	(void)cgn_buf_z(&j->key);
	(void)snprintf(uri, sizeof uri, "cognitora://-/%.*s/%s", (int)j->token.role.n, j->token.role.p,
		j->node);
	return cgn_err_of(pki_make_request(cgn_buf_view(&j->key), j->node, uri, &j->request, err), j->new_key,
		err);
}

static CGN_RC join_ask(struct joining *j, cgn_nsec timeout, Cognitora__V1__JoinResponse **out,
	struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", NULL};
	char id[INVITE_ID_DIGITS + 1], pin[65];
	struct cgn_buf hex = cgn_buf_over(pin, sizeof pin);
	Cognitora__V1__JoinRequest rq = COGNITORA__V1__JOIN_REQUEST__INIT;
	(void)cgn_str_copyz(id, sizeof id, j->token.id);
	(void)cgn_str_copyz(j->address, sizeof j->address, j->token.address);
	hex_put(&hex, (struct cgn_str){(const char *)j->token.ca, sizeof j->token.ca});
	rq.id = id;
	rq.secret = (ProtobufCBinaryData){sizeof j->token.secret, j->token.secret};
	rq.request = (ProtobufCBinaryData){j->request.n, (uint8_t *)j->request.p};
	struct tls_cfg tls = {.ca_pin = cgn_buf_z(&hex), .peer_uri = "/router/", .alpn = alpn};
	if (j->replaces) {
		tls.cert_file = j->cert_file;
		tls.key_file = j->key_file;
	}
	const struct ctl_call call = {.method = "Join",
		.answer = &cognitora__v1__join_response__descriptor,
		.request = &rq,
		.first = out,
		.timeout = timeout};
	return ctl_client_join(j->address, &tls, &call, err);
}

/* A certificate that is over, or of a CA that was replaced, does not keep a machine from joining again. */
static CGN_RC join_try(struct joining *j, cgn_nsec timeout, Cognitora__V1__JoinResponse **out,
	struct cgn_err *err)
{
	cgn_rc rc = join_ask(j, timeout, out, err);
	if (!j->replaces || (rc.code != CGN_TLS && rc.code != CGN_UNAVAILABLE))
		return rc;
	j->replaces = false;
	return join_ask(j, timeout, out, err);
}

/* Remove a new key that the router refused. Where no answer came, the token may be for it, and the next attempt takes it. */
static void key_drop(const struct joining *j, cgn_rc rc)
{
	if (j->fresh &&
		(rc.code == CGN_FORBIDDEN || rc.code == CGN_UNAUTHENTICATED || rc.code == CGN_CONFLICT))
		(void)unlink(j->new_key);
}

/* The answer came over TLS of the pinned authority; a router that errs must not leave useless files. */
static CGN_RC answer_check(const struct joining *j, const Cognitora__V1__JoinResponse *rs,
	struct cgn_err *err)
{
	struct sha256 sum;
	CGN_TRY(pki_fingerprint(cgn_str_of(rs->ca), &sum, err));
	if (memcmp(sum.b, j->token.ca, sizeof sum.b) != 0)
		return CGN_FAIL(err, TLS, "the router sent another CA than the token names");
	if (!pki_is_pair(cgn_str_of(rs->certificate), cgn_buf_view(&j->key)))
		return CGN_FAIL(err, TLS, "the router sent a certificate for another key");
	return CGN_OK;
}

static CGN_RC files_write(struct joining *j, const Cognitora__V1__JoinResponse *rs, struct cgn_err *err)
{
	CGN_TRY(disk_write_file_atomic(j->ca_file, cgn_str_of(rs->ca), 0644, err));
	CGN_TRY(disk_write_file_atomic(j->key_file, cgn_buf_view(&j->key), 0600, err));
	CGN_TRY(disk_write_file_atomic(j->cert_file, cgn_str_of(rs->certificate), 0644, err));
	(void)unlink(j->new_key);
	return CGN_OK;
}

/* The settings of the program that runs here. */
static void settings_put(const struct joining *j, const Cognitora__V1__JoinResponse *rs, struct cgn_buf *out)
{
	char real[PATH_MAX];
	const char *dir = realpath(j->dir, real) != NULL ? real : j->dir;
	const char *colon = strrchr(j->address, ':');
	int role = (int)j->token.role.n;
	cgn_buf_fmt(out, "[cluster]\nname = \"%s\"\n", ctl_shown(rs->cluster));
	if (rs->router[0] == ':' && colon != NULL)
		cgn_buf_fmt(out, "router = \"%.*s%s\"\n", (int)(colon - j->address), j->address,
			ctl_shown(rs->router));
	cgn_buf_fmt(out, "\n[security]\nrequire_mtls = true\nca_file = \"%s/ca.pem\"\n", dir);
	cgn_buf_fmt(out, "cert_file = \"%s/%.*s.pem\"\nkey_file = \"%s/%.*s.key\"\n", dir, role,
		j->token.role.p, dir, role, j->token.role.p);
	if (cgn_str_is(j->token.role, "agent") || cgn_str_is(j->token.role, "kvcached"))
		cgn_buf_fmt(out, "\n[agent]\nnode_id = \"%s\"\n", j->node);
}

static CGN_RC settings_give(const struct ctl_args *a, const struct joining *j,
	const Cognitora__V1__JoinResponse *rs, struct cgn_err *err)
{
	struct cgn_buf text = {0};
	const char *file = ctl_flag(a, "--config");
	bool taken = file != NULL && access(file, F_OK) == 0;
	settings_put(j, rs, &text);
	if (file == NULL || taken) {
		CGN_TRY(ctl_print(&text, err));
		return !taken
			? CGN_OK
			: CGN_FAIL(err, CONFLICT,
				  "the machine has joined, but %s exists and is kept: put the settings above there",
				  file);
	}
	cgn_rc rc = disk_write_file_atomic(file, cgn_buf_view(&text), 0644, err);
	cgn_buf_fini(&text);
	if (cgn_ok(rc) && !a->json)
		(void)fprintf(stderr, "cgn-ctl: joined as %s; settings are in %s, certificates in %s\n",
			j->node, file, j->dir);
	return rc;
}

static CGN_RC join_run(const struct ctl_args *a, struct joining *j, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__JoinResponse *rs = NULL;
	cgn_nsec timeout = 0;
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &timeout, err));
	CGN_TRY(token_take(a, j, err));
	CGN_TRY(node_choose(a, j, err));
	CGN_TRY(files_choose(a, j, err));
	CGN_TRY(key_prepare(j, err));
	cgn_rc rc = join_try(j, timeout, &rs, err);
	key_drop(j, rc);
	CGN_TRY(rc);
	CGN_TRY(answer_check(j, rs, err));
	CGN_TRY(files_write(j, rs, err));
	return settings_give(a, j, rs, err);
}

CGN_RC ctl_node_join(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(joining_fini) struct joining j = {.dir = NULL};
	return join_run(a, &j, err);
}
