/* Folders that list devices and that a kernel has as well, as on a machine with RDMA hardware: a folder of the program's own stands for /sys. */
#include "rule.h"
#include <dirent.h>
#include <sys/stat.h>

static char root[64], class[128], both[160], other[192], file[224];

static int no_dots(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void lists_both(const char *path, const char *ours)
{
	const char *rule = "files-beside";
	struct dirent **entries, *entry;
	int n, found = 0;
	DIR *stream;

	n = scandir(path, &entries, no_dots, alphasort);
	CHECK(rule, n == 2 && !strcmp(entries[0]->d_name, "other0") && !strcmp(entries[1]->d_name, ours));
	free(entries[0]);
	free(entries[1]);
	free(entries);
	stream = opendir(path);
	CHECK(rule, stream != NULL);
	while ((entry = readdir(stream)) != NULL)
		found += !strcmp(entry->d_name, "other0") + 10 * !strcmp(entry->d_name, ours);
	CHECK(rule, found == 11);
	/* The kernel's files are reached as ever. */
	n = openat(dirfd(stream), "other0/node_guid", O_RDONLY | O_CLOEXEC);
	CHECK(rule, n >= 0 && close(n) == 0 && closedir(stream) == 0);
	n = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(rule, n >= 0 && (stream = fdopendir(n)) != NULL);
	for (found = 0; (entry = readdir(stream)) != NULL;)
		found += no_dots(entry);
	CHECK(rule, found == 2 && closedir(stream) == 0);
}

int main(int argc, char **argv)
{
	const char *rule = "files-beside";
	struct ibv_device **list;
	struct stat status;
	char path[192];

	start(argc, argv);
	snprintf(root, sizeof root, "/tmp/oarlock-rule-%d", getpid());
	snprintf(class, sizeof class, "%s/class", root);
	snprintf(both, sizeof both, "%s/infiniband", class);
	snprintf(other, sizeof other, "%s/other0", both);
	snprintf(file, sizeof file, "%s/node_guid", other);
	CHECK(rule, mkdir(root, 0700) == 0 && mkdir(class, 0700) == 0 && mkdir(both, 0700) == 0 && mkdir(other, 0700) == 0);
	CHECK(rule, close(open(file, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600)) == 0);
	CHECK(rule, setenv("SYSFS_PATH", root, 1) == 0);
	list = ibv_get_device_list(NULL);
	CHECK(rule, list && list[0] && !list[1] && !strncmp(list[0]->ibdev_path, root, strlen(root)));
	lists_both(both, list[0]->name);
	snprintf(path, sizeof path, "%s//", both);
	lists_both(path, list[0]->name);
	CHECK(rule, stat(file, &status) == 0 && stat(list[0]->ibdev_path, &status) == 0);
	/* This one is only ours. */
	snprintf(path, sizeof path, "%s/infiniband_verbs", class);
	CHECK(rule, closedir(opendir(path)) == 0);
	ibv_free_device_list(list);
	CHECK(rule, unlink(file) == 0 && rmdir(other) == 0);
	CHECK(rule, rmdir(both) == 0 && rmdir(class) == 0 && rmdir(root) == 0);
	ok(rule);
	return 0;
}
