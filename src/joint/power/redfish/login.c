/* SPDX-License-Identifier: Apache-2.0 */
/* login: the password, and the session that it opens. */
#include <string.h>

#include "base/json/json.h"
#include "io/os/disk/disk.h"
#include "redfish_priv.h"

bool redfish_password_read(struct redfish_bmc *b, struct cgn_err *err)
{
	struct cgn_buf text = {0};
	bool is_other = false;
	if (b->password_file == NULL)
		return false;
	if (cgn_ok(disk_read_file(b->password_file, 4096, &text, err))) {
		char fresh[sizeof b->session.password] = "";
		struct cgn_str rest = cgn_buf_view(&text), line = cgn_str_split(&rest, '\n');
		if (line.n > 0 && line.p[line.n - 1] == '\r')
			line.n--;
		if (!cgn_str_copyz(fresh, sizeof fresh, line) || fresh[0] == '\0')
			(void)CGN_FAIL(err, INVALID, "%s: the first line is empty or longer than %zu bytes",
				b->password_file, sizeof fresh - 1);
		is_other = strcmp(fresh, b->session.password) != 0;
		memcpy(b->session.password, fresh, sizeof fresh);
		explicit_bzero(fresh, sizeof fresh);
	}
	if (text.p != NULL)
		explicit_bzero(text.p, text.cap);
	cgn_buf_fini(&text);
	return is_other;
}

/* Not every BMC has sessions; each has basic authentication. */
static void basic_begin(struct redfish_bmc *b)
{
	b->session.auth = REDFISH_BY_BASIC;
	redfish_round_go(b);
}

static void session_note(struct redfish_bmc *b, const struct redfish_answer *a)
{
	struct redfish_session *s = &b->session;
	memcpy(s->token, a->token, sizeof s->token);
	s->logins++;
	if (!redfish_location(b, a->location, s->location))
		s->location[0] = '\0';
}

static void on_login(struct redfish_bmc *b, const struct redfish_answer *a)
{
	char why[300];
	if (b->is_closing) {
		session_note(b, a);
		redfish_leave(b);
		return;
	}
	if (a->err->code != CGN_FINE) {
		redfish_round_fail(b, a->err->code, a->err->msg);
		return;
	}
	if (a->status / 100 == 2 && a->token[0] != '\0') {
		session_note(b, a);
		redfish_round_go(b);
		return;
	}
	if (a->status / 100 == 2 || a->status == 404 || a->status == 405 || a->status == 501) {
		basic_begin(b);
		return;
	}
	bool is_refused = a->status == 400 || a->status == 401 || a->status == 403;
	(void)snprintf(why, sizeof why,
		is_refused
			? "the BMC refuses the user %.60s (HTTP status %d); is the password in %.120s right?"
			: "the BMC opens no session for the user %.60s (HTTP status %d)",
		b->user, a->status, b->password_file);
	redfish_round_fail(b, is_refused ? CGN_FORBIDDEN : CGN_UNAVAILABLE, why);
}

bool redfish_login_is_open(const struct redfish_bmc *b)
{
	return b->request.done == on_login;
}

void redfish_login(struct redfish_bmc *b)
{
	struct cgn_buf text = {.limit = 4096};
	struct json_out o = json_out_to(&text);
	if (b->session.list[0] == '\0') {
		basic_begin(b);
		return;
	}
	b->session.auth = REDFISH_BY_SESSION;
	b->session.token[0] = '\0';
	json_open(&o, '{');
	json_key_z(&o, "UserName", b->user);
	json_key_z(&o, "Password", b->session.password);
	json_close(&o, '}');
	redfish_ask(b, "POST", b->session.list, cgn_buf_view(&text), on_login);
	explicit_bzero(text.p, text.cap);
	cgn_buf_fini(&text);
}

void redfish_logout(struct redfish_bmc *b, redfish_on_answer *done)
{
	const struct cgn_err fine = {0};
	const struct redfish_answer none = {.err = &fine};
	char path[REDFISH_PATH_BYTES];
	memcpy(path, b->session.location, sizeof path);
	b->session.location[0] = '\0';
	if (b->session.token[0] != '\0' && path[0] != '\0')
		redfish_ask(b, "DELETE", path, (struct cgn_str){NULL, 0}, done);
	else
		done(b, &none);
}
