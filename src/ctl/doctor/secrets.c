/* SPDX-License-Identifier: Apache-2.0 */
/* secrets: who may read or change the files that hold keys, passwords and settings. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl/doctor/doctor.h"

#define HASHES true /* The file holds hashes: everybody may read it. */

static void secret_look(struct doctor *d, const char *key, const char *path, bool hashes)
{
	struct stat st;
	if (path == NULL || stat(path, &st) != 0)
		return;
	mode_t bad = st.st_mode & (hashes ? S_IWGRP | S_IWOTH : S_IROTH | S_IWOTH | S_IWGRP);
	if (bad == 0)
		return;
	doctor_find(d, DOCTOR_PROBLEM, "%s (%s) has mode %04o: other users can %s it", path, key,
		(unsigned)st.st_mode & 07777, (bad & S_IROTH) != 0 ? "read" : "change");
	doctor_do(d, "chmod 600 %s%s", path,
		hashes ? "" : ", and replace the secret if others use this machine");
}

static void secrets_of_folder(struct doctor *d)
{
	char path[PATH_MAX];
	DIR *dir = opendir(DOCTOR_PKI);
	for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
		size_t n = strlen(e->d_name);
		if (n < 4 || strcmp(e->d_name + n - 4, ".key") != 0)
			continue;
		(void)snprintf(path, sizeof path, DOCTOR_PKI "/%s", e->d_name);
		secret_look(d, "the cluster's certificates", path, !HASHES);
	}
	if (dir != NULL)
		(void)closedir(dir);
}

void check_secrets(struct doctor *d)
{
	const struct config *c = d->cfg;
	const struct {
		const char *key, *path;
		bool hashes;
	} files[] = {{"security.key_file", c->security.key_file, false},
		{"security.ca_key_file", c->security.ca_key_file, false},
		{"security.isolation_secret_file", c->security.isolation_secret_file, false},
		{"router.tls_key_file", c->router.tls_key_file, false},
		{"cluster.etcd_key_file", c->cluster.etcd_key_file, false},
		{"auth.oidc_client_secret_file", c->auth.oidc_client_secret_file, false},
		{"kv.resp_password_file", c->kv.resp_password_file, false},
		{"router.rate_limit.redis_password_file", c->router.rate_limit.redis_password_file, false},
		{"metrics.redfish_password_file", c->metrics.redfish_password_file, false},
		{"metrics.ipmi_password_file", c->metrics.ipmi_password_file, false},
		{"auth.api_keys_file", c->auth.api_keys_file, HASHES},
		{"security.admin_keys_file", c->security.admin_keys_file, HASHES}};
	for (size_t i = 0; i < CGN_COUNT(files); i++)
		secret_look(d, files[i].key, files[i].path, files[i].hashes);
	for (size_t i = 0; i < c->n_engines; i++)
		secret_look(d, "engine.api_key_file", c->engines[i].api_key_file, !HASHES);
	for (size_t i = 0; i < c->n_peers; i++) {
		secret_look(d, "peers.NAME.api_key_file", c->peers[i].api_key_file, !HASHES);
		secret_look(d, "peers.NAME.key_file", c->peers[i].key_file, !HASHES);
	}
	for (size_t i = 0; i < c->n_bmcs; i++) {
		secret_look(d, "bmcs.NAME.password_file", c->bmcs[i].password_file, !HASHES);
		secret_look(d, "bmcs.NAME.ipmi_password_file", c->bmcs[i].ipmi_password_file, !HASHES);
	}
	secrets_of_folder(d);
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "keys and passwords are readable for their owners only");
}

void check_owners(struct doctor *d)
{
	struct stat st;
	if (d->path == NULL || stat(d->path, &st) != 0) {
		doctor_find(d, DOCTOR_SKIPPED, "there is no configuration file");
		return;
	}
	if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		doctor_find(d, DOCTOR_PROBLEM,
			"%s has mode %04o: other users can change what the programs do", d->path,
			(unsigned)st.st_mode & 07777);
		doctor_do(d, "chmod go-w %s", d->path);
	} else if (st.st_uid != 0 && st.st_uid != geteuid()) {
		doctor_find(d, DOCTOR_PROBLEM, "%s belongs to user %u, who can change what the programs do",
			d->path, (unsigned)st.st_uid);
		doctor_do(d, "chown root %s", d->path);
	} else
		doctor_find(d, DOCTOR_OK, "only its owner can change %s", d->path);
}
