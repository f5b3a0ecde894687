/* SPDX-License-Identifier: Apache-2.0 */
/* store: the block store's socket, peers and disks, and the folder of the state. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ctl/doctor/doctor.h"
#include "io/net/net/addr.h"
#include "io/net/pki/bundle.h"
#include "io/os/disk/disk.h"

#define GIB        ((double)(1 << 30))
#define PEM_LIMIT  ((size_t)1 << 20)
#define STATE_ROOM ((uint64_t)64 << 20) /* Bytes that journals, cordons and logs need at least. */

static int socket_connects(const char *path)
{
	struct net_addr a = {.local = true};
	struct sockaddr_un to;
	if (!cgn_str_copyz(a.path, sizeof a.path, cgn_str_of(path)))
		return ENAMETOOLONG;
	net_addr_unix(&a, &to);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int e = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
	(void)close(fd);
	return e;
}

void check_kv_socket(struct doctor *d)
{
	const struct config *c = d->cfg;
	bool both = d->programs[AGENT].meant && d->programs[KVCACHED].meant;
	bool wanted = d->programs[AGENT].meant && c->agent.kv_uds[0] != '\0' &&
		(d->programs[KVCACHED].meant || config_is_set(c, "agent.kv_uds"));
	if (!wanted) {
		doctor_find(d, DOCTOR_SKIPPED, "no agent here is to use a block store");
		return;
	}
	if (both && strcmp(c->agent.kv_uds, c->kv.uds) != 0) {
		doctor_find(d, DOCTOR_PROBLEM, "agent.kv_uds is %s, and the store listens on %s (kv.uds)",
			c->agent.kv_uds, c->kv.uds[0] != '\0' ? c->kv.uds : "none");
		doctor_do(d, "set agent.kv_uds = \"%s\"", c->kv.uds);
		return;
	}
	int e = socket_connects(c->agent.kv_uds);
	if (e == 0) {
		doctor_find(d, DOCTOR_OK, "a store answers at %s", c->agent.kv_uds);
		return;
	}
	doctor_find(d, DOCTOR_PROBLEM, "the socket of the block store %s (agent.kv_uds): %s", c->agent.kv_uds,
		strerror(e));
	doctor_do(d,
		e == EACCES
			? "run cgn-kvcached as the same user as the agent: the socket has mode 0660"
			: "systemctl start cgn-kvcached, or set agent.kv_uds = \"\" for a node without one");
}

/* Get a list of GET /peers of the store that runs here. */
static bool store_tells(const struct doctor *d, const char *list, struct json_val *out)
{
	const struct doctor_program *p = &d->programs[KVCACHED];
	struct json_val doc;
	return p->meant && p->answers && p->extra != NULL && p->extra->status == 200 &&
		cgn_ok(json_parse(cgn_buf_view(&p->extra->text), &doc, NULL, NULL)) &&
		json_get(doc, list, out);
}

void check_kv_peers(struct doctor *d)
{
	struct json_val peers, peer;
	size_t n = 0;
	if (!store_tells(d, "peers", &peers)) {
		doctor_find(d, DOCTOR_SKIPPED, "no block store here shows its peers");
		return;
	}
	struct json_iter it = json_iter_of(peers);
	while (json_next_elem(&it, &peer)) {
		if (json_get_str(peer, "site", &d->arena).n > 0)
			continue; /* check_kv_sites */
		n++;
		struct cgn_str state = json_get_str(peer, "state", &d->arena),
			       why = json_get_str(peer, "why", &d->arena),
			       addr = json_get_str(peer, "address", &d->arena);
		if (cgn_str_is(state, "ready"))
			continue;
		doctor_find(d, DOCTOR_WARNING, "no connection to the store at %.*s (%.*s%s%.*s)",
			CGN_STR_ARG(addr), CGN_STR_ARG(state), why.n > 0 ? ": " : "", CGN_STR_ARG(why));
		doctor_do(d, "start that store and open UDP port %s there (kv.quic_listen)",
			addr.n > 0 && memrchr(addr.p, ':', addr.n) != NULL
				? cgn_arena_fmt(&d->arena, "%s",
					  strrchr(cgn_arena_strz(&d->arena, addr), ':') + 1)
				: "7091");
	}
	if (n == 0)
		doctor_find(d, DOCTOR_SKIPPED, "the store has no peers");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "all peers are connected");
}

/* A store refuses such a file at its start and when it is read again. */
static void site_look_ca(struct doctor *d, const struct config_kv_site *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf theirs = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf ours = {0};
	struct cgn_err err;
	if (d->cfg->security.cert_file == NULL ||
		!cgn_ok(disk_read_file(s->ca_file, PEM_LIMIT, &theirs, &err)) ||
		!cgn_ok(disk_read_file(d->cfg->security.cert_file, PEM_LIMIT, &ours, &err)))
		return; /* check_files says so */
	if (!pki_bundle_signed(cgn_buf_view(&theirs), pki_first(cgn_buf_view(&ours))))
		return;
	doctor_find(d, DOCTOR_PROBLEM,
		"%s (kv_sites.\"%s\".ca_file) has the CA of this cluster: each of its certificates would pass for the site",
		s->ca_file, s->name);
	doctor_do(d, "put the CA of the site \"%s\" there", s->name);
}

static void site_look(struct doctor *d, struct json_val site)
{
	struct cgn_str name = json_get_str(site, "name", &d->arena),
		       state = json_get_str(site, "state", &d->arena),
		       why = json_get_str(site, "last_refusal", &d->arena);
	if (cgn_str_is(state, "closed")) {
		doctor_find(d, DOCTOR_WARNING,
			"the site %.*s may have nothing: it has no tenants or no models", CGN_STR_ARG(name));
		doctor_do(d, "set kv_sites.\"%.*s\".tenants and models, or remove the site",
			CGN_STR_ARG(name));
	} else if (cgn_str_is(state, "down")) {
		doctor_find(d, DOCTOR_WARNING, "no connection with the site %.*s%s%.*s", CGN_STR_ARG(name),
			why.n > 0 ? ": " : "", CGN_STR_ARG(why));
		doctor_do(d,
			"compare kv_sites.\"%.*s\".peers and ca_file with listen and the certificates there; see cgn-ctl kv peers",
			CGN_STR_ARG(name));
	}
}

void check_kv_sites(struct doctor *d)
{
	struct json_val sites, site;
	if (d->cfg->n_kv_sites == 0) {
		doctor_find(d, DOCTOR_SKIPPED, "no kv_sites are configured");
		return;
	}
	for (size_t i = 0; i < d->cfg->n_kv_sites; i++)
		site_look_ca(d, &d->cfg->kv_sites[i]);
	if (store_tells(d, "sites", &sites)) {
		struct json_iter it = json_iter_of(sites);
		while (json_next_elem(&it, &site))
			site_look(d, site);
	}
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK,
			"the sites of the block store have CAs of their own and connections");
}

/* ---- disks ---- */

/* Ask the file system of |path|, or of the nearest folder above that exists. */
static bool disk_ask(const char *path, struct statvfs *out)
{
	char try[PATH_MAX];
	(void)snprintf(try, sizeof try, "%s", path);
	while (statvfs(try, out) != 0) {
		char *slash = strrchr(try, '/');
		if (slash == NULL || slash == try)
			return statvfs("/", out) == 0;
		*slash = '\0';
	}
	return true;
}

static void disk_look(struct doctor *d, const char *key, const char *path, uint64_t least)
{
	struct statvfs fs;
	if (path == NULL || path[0] == '\0' || !disk_ask(path, &fs))
		return;
	uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize, all = (uint64_t)fs.f_blocks * fs.f_frsize;
	bool files_left = fs.f_files == 0 || fs.f_favail > 1000;
	if (left < least || !files_left) {
		doctor_find(d, DOCTOR_PROBLEM, "the disk of %s (%s) has %.2f GiB %sleft", path, key,
			(double)left / GIB, files_left ? "" : "and no inodes ");
		doctor_do(d, "free some room, or set %s to a folder of another disk", key);
	} else if (left < all / 50) {
		doctor_find(d, DOCTOR_WARNING,
			"the disk of %s (%s) is nearly full: %.1f of %.1f GiB are left", path, key,
			(double)left / GIB, (double)all / GIB);
		doctor_do(d, "free some room, or set %s to a folder of another disk", key);
	}
}

static void tier_look(struct doctor *d)
{
	const struct config *c = d->cfg;
	struct statvfs fs;
	if (c->kv.ssd_dir == NULL || c->kv.ssd_dir[0] == '\0' || c->kv.ssd == 0 ||
		!disk_ask(c->kv.ssd_dir, &fs))
		return;
	uint64_t all = (uint64_t)fs.f_blocks * fs.f_frsize;
	if (c->kv.ssd <= all)
		return;
	doctor_find(d, DOCTOR_PROBLEM, "kv.ssd is %.1f GiB, and the disk of %s has %.1f",
		(double)c->kv.ssd / GIB, c->kv.ssd_dir, (double)all / GIB);
	doctor_do(d, "set kv.ssd = \"%.0fGiB\" or less", (double)all / GIB * 0.9);
}

void check_disk(struct doctor *d)
{
	disk_look(d, "cluster.state_dir", d->cfg->cluster.state_dir, STATE_ROOM);
	if (d->programs[KVCACHED].meant) {
		disk_look(d, "kv.ssd_dir", d->cfg->kv.ssd_dir, 0);
		tier_look(d);
	}
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the disks have room");
}

void check_state_dir(struct doctor *d)
{
	const char *dir = d->cfg->cluster.state_dir;
	struct stat st;
	const struct passwd *user =
		d->units && strcmp(d->programs[ROUTER].load, "loaded") == 0 ? getpwnam("cognitora") : NULL;
	if (stat(dir, &st) != 0) {
		doctor_find(d, DOCTOR_PROBLEM, "cluster.state_dir %s: %s", dir, strerror(errno));
		doctor_do(d, "systemd-tmpfiles --create, or mkdir -p %s", dir);
	} else if (!S_ISDIR(st.st_mode)) {
		doctor_find(d, DOCTOR_PROBLEM, "cluster.state_dir %s is not a folder", dir);
		doctor_do(d, "name a folder");
	} else if (user != NULL ? st.st_uid != user->pw_uid
				: faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) != 0) {
		doctor_find(d, DOCTOR_PROBLEM,
			"cluster.state_dir %s belongs to user %u; the programs cannot write there", dir,
			(unsigned)st.st_uid);
		doctor_do(d, "chown -R %s %s", user != NULL ? "cognitora:cognitora" : "USER-OF-THE-PROGRAMS",
			dir);
	} else
		doctor_find(d, DOCTOR_OK, "%s is there and writable", dir);
}
