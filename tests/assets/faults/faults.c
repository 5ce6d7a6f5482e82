/* Makes calls on files fail, as a file says that the test writes: "<call> <errno> <one in so many> <part of the path>".

   Preloaded into a service. Calls: open, read, write, fsync, any. An empty file: nothing fails. How many calls it made
   fail stands in the middle of the file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *orders;
static unsigned count;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS");
    int handle = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR) : -1;
    if (handle < 0) return;
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    syscall(SYS_close, handle);
    if (mapped != MAP_FAILED) orders = mapped;
}

static int fails(const char *call, const char *path) {
    char wanted[16] = "", part[200] = "";
    int number = 0, among = 1;
    if (!orders || !orders[0] || !path) return 0;
    if (sscanf(orders, "%15s %d %d %199s", wanted, &number, &among, part) != 4) return 0;
    if (strcmp(wanted, call) && strcmp(wanted, "any")) return 0;
    if (!strstr(path, part)) return 0;
    if (__sync_add_and_fetch(&count, 1) % among) return 0;
    __sync_add_and_fetch((unsigned *)(orders + 2048), 1);
    errno = number;
    return 1;
}

static int fails_on(const char *call, int handle) {
    char link[64], path[1024];
    if (!orders || !orders[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(call, path);
}

#define OPENS(name)                                                      \
    int name(const char *path, int flags, ...) {                         \
        va_list more;                                                    \
        va_start(more, flags);                                           \
        mode_t mode = va_arg(more, mode_t);                              \
        va_end(more);                                                    \
        if (fails("open", path)) return -1;                              \
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);    \
    }
#define OPENS_AT(name)                                                   \
    int name(int folder, const char *path, int flags, ...) {             \
        va_list more;                                                    \
        va_start(more, flags);                                           \
        mode_t mode = va_arg(more, mode_t);                              \
        va_end(more);                                                    \
        if (fails("open", path)) return -1;                              \
        return (int)syscall(SYS_openat, folder, path, flags, mode);      \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t read(int handle, void *to, size_t size) {
    return fails_on("read", handle) ? -1 : syscall(SYS_read, handle, to, size);
}
ssize_t write(int handle, const void *from, size_t size) {
    return fails_on("write", handle) ? -1 : syscall(SYS_write, handle, from, size);
}
int fsync(int handle) { return fails_on("fsync", handle) ? -1 : (int)syscall(SYS_fsync, handle); }
