"""What both services and their clients share of gRPC: conversion, errors, channels and servers."""
