/* Files of devices that programs look at by themselves, below /sys and /dev. */
#include "rule.h"
#include <dirent.h>
#include <sys/stat.h>

/* Exported, and declared for drivers only. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

/* What the library says of a file, with the end of the line that it takes away. */
static void told(struct ibv_device *device, const char *file, char *text, size_t size)
{
	int len = ibv_read_sysfs_file(device->ibdev_path, file, text, size - 1);

	CHECK("files-sysfs", len >= 0 && (size_t)len < size - 1);
	strcpy(text + len, "\n");
}

static void sysfs(struct ibv_device *device)
{
	const char *files[] = { "node_guid", "node_type", "ports/1/state", "ports/1/gids/0", "ports/1/gid_attrs/types/0",
				"ports/1/gid_attrs/ndevs/0" };
	char path[600], expected[128], found[128];
	struct stat status;

	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		FILE *stream;
		int fd, n;

		told(device, files[i], expected, sizeof expected);
		snprintf(path, sizeof path, "%s/%s", device->ibdev_path, files[i]);
		CHECK("files-sysfs", access(path, R_OK) == 0);
		CHECK("files-sysfs", stat(path, &status) == 0 && S_ISREG(status.st_mode));
		CHECK("files-sysfs", lstat(path, &status) == 0 && S_ISREG(status.st_mode));
		stream = fopen(path, "r");
		CHECK("files-sysfs", stream && fgets(found, sizeof found, stream) && !strcmp(found, expected));
		CHECK("files-sysfs", !fgets(found, sizeof found, stream) && feof(stream) && fclose(stream) == 0);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		CHECK("files-sysfs", fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
		n = read(fd, found, sizeof found);
		CHECK("files-sysfs", n == (int)strlen(expected) && !memcmp(found, expected, n) && close(fd) == 0);
		/* They are for reading. */
		FAILS("files-sysfs", access(path, W_OK), EACCES);
		FAILS("files-sysfs", open(path, O_RDWR), EACCES);
		errno = 0;
		CHECK("files-sysfs", !fopen(path, "w") && errno == EACCES);
	}
	ok("files-sysfs");
}

static void node(struct ibv_device *device)
{
	char path[600];
	struct stat status;

	snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
	CHECK("files-node", access(path, F_OK) == 0 && access(path, R_OK | W_OK) == 0);
	CHECK("files-node", stat(path, &status) == 0 && S_ISCHR(status.st_mode));
	CHECK("files-node", lstat(path, &status) == 0 && S_ISCHR(status.st_mode));
	FAILS("files-node", open(path, O_RDWR), ENXIO);
	ok("files-node");
}

static int no_dots(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* How often the stream lists the name, from where it is. */
static int listed(DIR *stream, const char *name)
{
	struct dirent *entry;
	int n = 0;

	while ((entry = readdir(stream)) != NULL)
		n += !strcmp(entry->d_name, name);
	return n;
}

static void folder(const char *path, const char *has, int count)
{
	const char *rule = "files-folders";
	struct dirent **entries;
	struct stat status;
	DIR *stream;
	int fd, n;

	CHECK(rule, access(path, R_OK | X_OK) == 0 && stat(path, &status) == 0 && S_ISDIR(status.st_mode));
	CHECK(rule, lstat(path, &status) == 0 && (S_ISDIR(status.st_mode) || S_ISLNK(status.st_mode)));
	FAILS(rule, open(path, O_RDWR), EISDIR);
	stream = opendir(path);
	CHECK(rule, stream && listed(stream, has) == 1);
	rewinddir(stream);
	CHECK(rule, listed(stream, has) == 1 && closedir(stream) == 0);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(rule, fd >= 0 && (stream = fdopendir(fd)) && listed(stream, has) == 1 && closedir(stream) == 0);
	n = scandir(path, &entries, no_dots, alphasort);
	CHECK(rule, n == count || (count < 0 && n >= -count));
	for (int i = 0; i < n; i++) {
		char name[600];

		/* Whatever is listed is there. */
		snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
		CHECK(rule, access(name, F_OK) == 0 && stat(name, &status) == 0 && lstat(name, &status) == 0);
		free(entries[i]);
	}
	free(entries);
}

static void *lists(void *path)
{
	folder(path, "0", 256);
	return NULL;
}

static void folders(struct ibv_device *device)
{
	const char *rule = "files-folders";
	const char *shared[] = { "/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband" };
	const char *names[] = { device->name, device->dev_name, device->dev_name };
	char path[600];
	struct dirent **none;
	pthread_t others[4];
	int status;

	for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
		folder(shared[i], names[i], -1);
	folder(device->ibdev_path, "node_guid", 9);
	folder(device->dev_path, "ibdev", 2);
	snprintf(path, sizeof path, "%s/ports/", device->ibdev_path);
	folder(path, "1", 1);
	snprintf(path, sizeof path, "%s/ports/1", device->ibdev_path);
	folder(path, "state", 12);
	snprintf(path, sizeof path, "%s/ports/1/gid_attrs/types", device->ibdev_path);
	folder(path, "0", -1);
	/* A file is none, and one that no device has is absent. */
	snprintf(path, sizeof path, "%s/node_guid", device->ibdev_path);
	errno = 0;
	CHECK(rule, !opendir(path) && errno == ENOTDIR);
	FAILS(rule, open(path, O_RDONLY | O_DIRECTORY), ENOTDIR);
	snprintf(path, sizeof path, "%s/ports/2", device->ibdev_path);
	errno = 0;
	CHECK(rule, !opendir(path) && errno == ENOENT);
	FAILS(rule, scandir(path, &none, NULL, NULL), ENOENT);
	/* By several threads at once, and in a child. */
	snprintf(path, sizeof path, "%s/ports/1/gids", device->ibdev_path);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		others[i] = thread(rule, lists, path);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		CHECK(rule, pthread_join(others[i], NULL) == 0);
	pid_t child = fork();
	CHECK(rule, child >= 0);
	if (child == 0) {
		lists(path);
		_exit(0);
	}
	CHECK(rule, waitpid(child, &status, 0) == child && status == 0);
	CHECK(rule, scandir("/proc/self/fdinfo", &none, no_dots, NULL) > 2);
	ok(rule);
}

/* What no device has is not there, and other files are as they are. */
static void others(struct ibv_device *device)
{
	const char *absent[] = { "%s/no_such_file", "%s/ports/2/state", "%s/ports/1/gid_attrs/types/255",
				 "/dev/infiniband/%.0suverbs777", "/nowhere/%.0sfile" };
	char path[600], text[64];
	struct stat status;
	FILE *stream;

	for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
		snprintf(path, sizeof path, absent[i], device->ibdev_path);
		FAILS("files-others", access(path, F_OK), ENOENT);
		FAILS("files-others", stat(path, &status), ENOENT);
		FAILS("files-others", lstat(path, &status), ENOENT);
		FAILS("files-others", open(path, O_RDONLY), ENOENT);
		errno = 0;
		CHECK("files-others", !fopen(path, "r") && errno == ENOENT);
	}
	stream = fopen("/proc/sys/kernel/ostype", "re");
	CHECK("files-others", stream && fgets(text, sizeof text, stream) && !strcmp(text, "Linux\n"));
	fclose(stream);
	snprintf(path, sizeof path, "/tmp/oarlock-rule-%d", getpid());
	int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0640);
	CHECK("files-others", fd >= 0 && stat(path, &status) == 0 && (status.st_mode & 0777) == 0640);
	FAILS("files-others", open(path, O_CREAT | O_EXCL | O_WRONLY, 0640), EEXIST);
	CHECK("files-others", close(fd) == 0 && unlink(path) == 0);
	CHECK("files-others", symlink("/nowhere/file", path) == 0 && lstat(path, &status) == 0 && S_ISLNK(status.st_mode));
	FAILS("files-others", stat(path, &status), ENOENT);
	CHECK("files-others", unlink(path) == 0);
	ok("files-others");
}

static char fifo[64];

static void note(void *noted)
{
	*(int *)noted = 1;
}

/* Nobody opens its other end. */
static void *wait_in_open(void *noted)
{
	pthread_cleanup_push(note, noted);
	open(fifo, O_RDONLY);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *wait_in_fopen(void *noted)
{
	pthread_cleanup_push(note, noted);
	fopen(fifo, "r");
	pthread_cleanup_pop(0);
	return NULL;
}

/* Asks for it with the cancellation waiting already, and opens nothing otherwise. */
static char node_guid[600];
static void *open_cancelled(void *noted)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_cancel(pthread_self());
	pthread_cleanup_push(note, noted);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
	open(node_guid, O_RDONLY | O_CLOEXEC);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancelled(struct ibv_device *device)
{
	void *(*ways[])(void *) = { wait_in_open, wait_in_fopen, open_cancelled };

	snprintf(node_guid, sizeof node_guid, "%s/node_guid", device->ibdev_path);
	snprintf(fifo, sizeof fifo, "/tmp/oarlock-rule-%d", getpid());
	CHECK("files-cancel", mkfifo(fifo, 0600) == 0);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		pthread_t waiting;
		void *end;
		int noted = 0;

		CHECK("files-cancel", pthread_create(&waiting, NULL, ways[i], &noted) == 0);
		usleep(A_WHILE * 1000);
		CHECK("files-cancel", i == 2 || pthread_cancel(waiting) == 0);
		CHECK("files-cancel", pthread_join(waiting, &end) == 0 && end == PTHREAD_CANCELED && noted);
	}
	CHECK("files-cancel", unlink(fifo) == 0);
	ok("files-cancel");
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	int n;

	start(argc, argv);
	umask(0);
	/* From the first list on, and after further ones. */
	ibv_free_device_list(ibv_get_device_list(NULL));
	list = ibv_get_device_list(&n);
	CHECK("files-sysfs", list && n > 0);
	for (int i = 0; i < n; i++) {
		sysfs(list[i]);
		node(list[i]);
		folders(list[i]);
		others(list[i]);
	}
	cancelled(list[0]);
	ibv_free_device_list(list);
	return 0;
}
