module kfp-mindspore.test/pause

go 1.24
