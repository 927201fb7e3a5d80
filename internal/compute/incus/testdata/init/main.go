// Command init is all there is in the image that the integration test makes:
// the first process of a container, and under the name /bin/tool the few
// commands that the test runs in it.
package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	if os.Getpid() == 1 {
		initProcess()
		return
	}
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	if err := tool(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// initProcess counts boots, brings the network up and waits for its end.
func initProcess() {
	stop := make(chan os.Signal, 1)
	// The second is SIGRTMIN+3, which tells systemd to halt.
	signal.Notify(stop, syscall.SIGPWR, syscall.Signal(37))
	os.Remove("/run/stubborn")
	n := 1
	if b, err := os.ReadFile("/boots"); err == nil {
		n, _ = strconv.Atoi(string(b))
		n++
	}
	must(os.WriteFile("/boots", []byte(strconv.Itoa(n)), 0o644))
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	must(err)
	fmt.Fprintf(console, "boot %d\n", n)
	b, err := os.ReadFile("/etc/address")
	must(err)
	must(setAddress(strings.TrimSpace(string(b))))
	must(os.WriteFile("/run/up", []byte(strconv.Itoa(n)), 0o644))
	for range stop {
		if _, err := os.Stat("/run/stubborn"); err != nil {
			return
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tool(name string, args []string) error {
	switch name {
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "say": // to both outputs, then end with that code
		fmt.Fprint(os.Stdout, args[0])
		fmt.Fprint(os.Stderr, args[1])
		code, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "spew":
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		_, err = io.CopyN(os.Stdout, zeros{}, int64(n))
		return err
	case "env":
		wd, err := os.Getwd()
		fmt.Printf("%s %s", os.Getenv(args[0]), wd)
		return err
	case "forever":
		fmt.Println("here")
		time.Sleep(time.Hour)
	case "poweroff":
		return syscall.Kill(1, syscall.SIGPWR)
	case "write":
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "owner":
		fi, err := os.Stat(args[0])
		if err != nil {
			return err
		}
		fmt.Print(fi.Sys().(*syscall.Stat_t).Uid)
	case "up": // once init has got that far, in that boot
		for {
			if b, err := os.ReadFile("/run/up"); err == nil && string(b) == args[0] {
				return nil
			}
			time.Sleep(5 * time.Millisecond)
		}
	case "address":
		return setAddress(args[0])
	case "dial": // prints what the server says, which is our address
		c, err := net.DialTimeout("tcp", args[0], 2*time.Second)
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, c)
		return err
	default:
		return fmt.Errorf("no such tool: %s", name)
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// setAddress gives eth0 an address and brings it up.
func setAddress(cidr string) error {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return err
	}
	mask := net.CIDRMask(p.Bits(), 32)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	type request struct {
		name [16]byte
		data [24]byte
	}
	call := func(op uintptr, data []byte) error {
		var r request
		copy(r.name[:], "eth0")
		copy(r.data[:], data)
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), op, uintptr(unsafe.Pointer(&r))); e != 0 {
			return e
		}
		return nil
	}
	sockaddr := func(b []byte) []byte {
		return append([]byte{syscall.AF_INET, 0, 0, 0}, b...)
	}
	if err := call(syscall.SIOCSIFADDR, sockaddr(p.Addr().AsSlice())); err != nil {
		return err
	}
	if err := call(syscall.SIOCSIFNETMASK, sockaddr(mask)); err != nil {
		return err
	}
	return call(syscall.SIOCSIFFLAGS, []byte{syscall.IFF_UP | syscall.IFF_RUNNING, 0})
}
